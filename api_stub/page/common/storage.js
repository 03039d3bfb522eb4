/** What this browser remembers of the page. Without storage, or if it is full, the page works and remembers nothing. */

const PREFIX = "kronos."

function tried(action) {
  try {
    return action()
  } catch {
    return null
  }
}

export const recall = (name, otherwise) => tried(() => JSON.parse(localStorage.getItem(PREFIX + name))) ?? otherwise
export const remember = (name, value) => tried(() => localStorage.setItem(PREFIX + name, JSON.stringify(value)))
export const forget = (name) => tried(() => localStorage.removeItem(PREFIX + name))

/** Calls `listener` when another tab has changed a value. */
export function onOtherTab(name, listener) {
  addEventListener("storage", ({ key }) => {
    if (key === PREFIX + name || key === null) listener()
  })
}
