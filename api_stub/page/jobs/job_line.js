/** The progress of a forecast or training job, with a button to cancel it. */

import { ApiError, get, hasEnded, remove, states } from "../service/api.js"
import { byId, showText } from "../common/elements.js"
import { reason } from "../common/texts.js"

export class JobLine {
  #address = null
  #following = null
  #last = null
  #describe = null
  #place = null

  /** `name` is the id of its box, with which those of its other elements begin; `recent` is the list of jobs that keeps their states. */
  constructor(name, recent) {
    const parts = ["state", "progress", "share", "problem"].map((part) => [part, byId(`${name}-${part}`)])
    this.elements = { ...Object.fromEntries(parts), box: byId(name), cancel: byId(name).querySelector("button") }
    this.elements.cancel.addEventListener("click", () => this.#cancel())
    this.recent = recent
  }

  /** Shows a line until `follow` shows the job's own state: while the job is sent, for example. */
  announce(text) {
    const { box, cancel } = this.elements
    Object.assign(cancel, { disabled: true, textContent: "Cancel" })
    box.hidden = false
    this.#show({ text, share: null })
  }

  /** Hides the line and follows no job. A job goes on. */
  leave() {
    this.#following?.abort()
    this.#following = this.#address = this.#last = this.#place = null
    this.elements.box.hidden = true
  }

  /**
   * Follows a job, instead of the last one, until it has ended.
   * @param address The job's path below v1/, such as "forecasts/ID".
   * @param describe Returns `{text, share, rest}` for a state and a place in the queue: the share that is done, 0 to 1
   *   or null if unknown, and how long the rest takes, in words.
   * @param onBars Called with the series of a forecast that streams: the bars that are done so far.
   * @returns The job's result, or null if the line has left the job. Throws ApiError with the job's error.
   */
  async follow(address, describe, onBars = () => {}) {
    this.leave()
    this.announce("")
    this.elements.cancel.disabled = false
    const following = this.#following = new AbortController()
    this.#address = address
    this.#describe = describe
    this.#last = { state: "queued" }
    this.refresh()
    try {
      for await (const state of states(address, following.signal)) {
        if (following.signal.aborted) break
        if (state?.series) {
          onBars(state.series)
          continue
        }
        if (state?.state !== this.#last?.state) this.#place = null
        this.#last = state
        if (state) this.recent.update(address, state)
        if (state?.error) throw new ApiError(state.error.message, state.error)
        if (state && hasEnded(state)) return state.result
        this.refresh()
      }
    } finally {
      if (this.#following === following) this.leave()
    }
    return null
  }

  /** Reads how many jobs come before one that waits, and how long that takes, or the rest of one that runs. */
  async estimate() {
    const address = this.#address
    const state = this.#last?.state
    if (!address || !["queued", "running"].includes(state)) return
    try {
      const { state: now, jobs_before: before, seconds_left: left } = await get(`${address}?estimate=true`)
      if (this.#address === address && now === state) this.#place = { before, left }
    } catch {
      return // what is wrong with the job, its states say
    }
    this.refresh()
  }

  /** Describes the job again, because the workers may have changed. */
  refresh() {
    if (!this.#address) return
    if (this.#last) this.#show(this.#describe(this.#last, this.#place))
    else this.#show({ text: "The connection was lost. The job goes on. Connecting again…", share: null })
  }

  #show({ text, share, rest = "" }) {
    const { state, progress, share: shown } = this.elements
    if (state.textContent !== text) state.textContent = text // screen readers read every change
    if (share === null) progress.removeAttribute("value")
    else progress.value = share
    const done = share === null ? "" : `${Math.floor(share * 100)} %`
    shown.textContent = [done, rest].filter(Boolean).join(" · ")
  }

  async #cancel() {
    const { cancel, problem } = this.elements
    Object.assign(cancel, { disabled: true, textContent: "Cancelling…" })
    try {
      await remove(this.#address)
    } catch (error) {
      Object.assign(cancel, { disabled: false, textContent: "Cancel" })
      showText(problem, reason(error))
    }
  }
}
