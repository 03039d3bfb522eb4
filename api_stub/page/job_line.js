/** How far a job is, with a way to cancel it; a forecast's or a training's. */

import { ApiError, hasEnded, remove, states } from "./api.js"
import { byId, tell } from "./elements.js"
import { reason } from "./texts.js"

export class JobLine {
  #address = null
  #last = null
  #describe = null

  /** Elements' ids: `box`, `state`, `progress`, `share`, `cancel` and `problem`. */
  constructor(ids) {
    this.elements = Object.fromEntries(Object.entries(ids).map(([name, id]) => [name, byId(id)]))
    this.elements.cancel.addEventListener("click", () => this.#cancel())
  }

  /**
   * Follows a job until it has ended.
   *
   * @param address of the job below v1/, as "forecasts/ID".
   * @param describe gives `{text, share}` for a state; share is of 1, null where it is not known.
   * @returns the job's result; throws ApiError with the job's error.
   */
  async follow(address, describe) {
    const { box, cancel } = this.elements
    this.#address = address
    this.#describe = describe
    this.#last = { state: "queued" }
    Object.assign(cancel, { disabled: false, textContent: "Cancel" })
    box.hidden = false
    this.refresh()
    box.scrollIntoView({ block: "nearest" })
    try {
      for await (const state of states(address)) {
        this.#last = state
        if (state !== null && hasEnded(state)) return resultOf(state)
        this.refresh()
      }
    } finally {
      this.#address = this.#last = null
      box.hidden = true
    }
    return null
  }

  /** Describes the job anew: what else is known may have changed. */
  refresh() {
    if (!this.#address) return
    if (this.#last) this.#show(this.#describe(this.#last))
    else this.#show({ text: "The connection was lost; the job goes on. Trying again…", share: null })
  }

  #show({ text, share }) {
    const { state, progress, share: shown } = this.elements
    if (state.textContent !== text) state.textContent = text // else it would be read out again
    if (share === null) progress.removeAttribute("value")
    else progress.value = share
    shown.textContent = share === null ? "" : `${Math.floor(share * 100)} %`
  }

  async #cancel() {
    const { cancel, problem } = this.elements
    Object.assign(cancel, { disabled: true, textContent: "Cancelling…" })
    try {
      await remove(this.#address)
    } catch (error) {
      Object.assign(cancel, { disabled: false, textContent: "Cancel" })
      tell(problem, reason(error))
    }
  }
}

function resultOf({ result, error }) {
  if (error) throw new ApiError(error.message, error)
  return result
}
