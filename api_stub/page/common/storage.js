/** What this browser remembers of the page. Without storage, or if it is full, nothing is remembered. */

const PREFIX = "kronos."

export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise
  } catch {
    return otherwise
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value))
  } catch {
    // The page works without.
  }
}

export function forget(name) {
  try {
    localStorage.removeItem(PREFIX + name)
  } catch {
    // The page works without.
  }
}

/** Calls `listener` when another tab has changed a value. */
export function onOtherTab(name, listener) {
  addEventListener("storage", ({ key }) => {
    if (key === PREFIX + name || key === null) listener()
  })
}
