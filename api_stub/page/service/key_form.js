/** Asks for the API key if the service needs one, and keeps it until the tab is closed. */

import { key, onUnauthorized } from "./api.js"
import { byId } from "../common/elements.js"

/** Calls `onKey` when a key has been entered. */
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
    if (!byId("key-refused").hidden) return // a header cannot carry it
    key.set(given)
    form.hidden = true
    onKey()
  })
}
