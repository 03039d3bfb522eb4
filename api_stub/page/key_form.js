/** Asks for the API key when the service does, and keeps it for as long as the tab is there. */

import { key, onUnauthorized } from "./api.js"
import { byId } from "./elements.js"

/** `onKey` is called once a key was given. */
export function askForKey(onKey) {
  const form = byId("key-form")
  onUnauthorized.add(() => {
    byId("key-refused").hidden = !key.get()
    form.hidden = false
  })
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    const given = byId("key").value.trim()
    byId("key").value = ""
    byId("key-refused").hidden = /^[!-~]+$/.test(given)
    if (!byId("key-refused").hidden) return // what no header can carry is no key
    key.set(given)
    form.hidden = true
    onKey()
  })
}
