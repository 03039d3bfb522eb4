/** The job of one section of the page: sent, or opened by its link, followed to its end, cancelled. One at a time. */
import { ApiError, Unreachable, get, hasEnded, newRepeatKey, post, remove, states } from "../service/api.js"
import { badField, byId, mark, showText } from "../common/elements.js"
import { waiting } from "../service/pool.js"
import { reason, words } from "../common/texts.js"

const LONG_MS = 16_000 // workers announce their status every few seconds, and the page reads it as often

export class SectionJob {
  #kind
  #button
  #parts // of the line that shows its progress
  #hooks
  #silence = new Silence()
  #following = null // what stops following
  #last = null // the job's state; null while the connection is lost
  #place = null // in the queue
  /** The id of the job that is followed; null if there is none. */
  id = null

  /**
   * @param kind The jobs' path below v1/, such as "forecasts".
   * @param button The id of the button that sends a job.
   * @param line The id of the box that shows its progress, with which those of the box's elements begin.
   * @param hooks `check` returns what is wrong with the form, or null, and `submit` sends its job; `forget` hides what
   *   earlier jobs have left; `describe` returns `{text, share, rest}` for a running job's state, its place in the queue
   *   and whether it has been silent for long: the share that is done, 0 to 1, null if unknown, and how long the rest
   *   takes, in words; `show` shows a result, with what this browser has stored of the job; `showBars` does so for a
   *   forecast that is not done; `worksOn` is whether a worker may have the job of an id.
   *   A field of the form has the name of the job's field, or that as `data-field`, to mark what is refused.
   */
  constructor(kind, button, line, pool, recent, hooks) {
    const parts = ["state", "progress", "share", "problem"].map((part) => [part, byId(`${line}-${part}`)])
    this.#kind = kind
    this.#button = byId(button)
    this.#parts = { ...Object.fromEntries(parts), box: byId(line), cancel: byId(line).querySelector("button") }
    this.#parts.cancel.addEventListener("click", () => this.#cancel())
    const worksOn = ({ training }, id) => training?.job_id === id
    this.#hooks = { showBars: () => {}, worksOn, check: badField, ...hooks }
    this.#button.form.addEventListener("submit", (event) => this.#submit(event))
    Object.assign(this, { pool, recent })
    pool.onChange((state) => {
      if (state) this.#silence.note(state.workers.some((worker) => this.#hooks.worksOn(worker, this.id)))
      this.#refresh()
      this.#estimate()
    })
  }

  /** Whether a job is sent or followed. Meanwhile the button keeps the focus but does nothing. */
  get isBusy() { return this.#button.ariaDisabled === "true" }
  set isBusy(value) { this.#button.ariaDisabled = String(value) }

  /** Calls the hook unless a job is followed or the form has a mistake, which is said above its button. */
  #submit(event) {
    event.preventDefault()
    if (this.isBusy) return
    showText(this.#parts.problem, null)
    const bad = this.#hooks.check(event.target)
    showText(this.#formProblem, bad)
    if (!bad) this.#hooks.submit()
  }

  get #formProblem() { return this.#button.form.querySelector("[id$=form-problem]") }
  get #path() { return `${this.#kind}/${this.id}` }

  /**
   * Sends a job and follows it. If no answer comes, the same job can be sent again: it is computed once.
   * @param title What it is, for the list of jobs.
   * @param known What this browser keeps to show the job again.
   */
  async send(job, title, known = null, repeatKey = newRepeatKey()) {
    await this.#busy(async () => {
      this.#leave()
      this.#announce("Sending")
      const { id } = await post(this.#kind, job, repeatKey)
      this.recent.add(`${this.#kind}/${id}`, title, known, job)
      history.pushState(null, "", `#${this.#kind}/${id}`)
      this.pool.refresh()
      await this.#follow(id, known)
    }, (error) => {
      this.#leave()
      return error instanceof Unreachable ? () => this.send(job, title, known, repeatKey) : null
    })
  }

  /** Shows a job by its id, unless it is shown: its progress, and then its result. */
  async open(id, known = null) {
    if (id === this.id) return
    await this.#busy(() => this.#follow(id, known), (error) => {
      if (error instanceof ApiError) this.recent.onRefusal(`${this.#kind}/${id}`, error)
      return error.status === 401 ? () => this.open(id, known) : null
    })
  }

  /** Works with the button disabled, and shows an error with the repetition that `onError` returns. */
  async #busy(work, onError) {
    const { problem } = this.#parts
    this.#hooks.forget()
    for (const box of [problem, this.#formProblem]) showText(box, null)
    this.isBusy = true
    try {
      await work()
    } catch (error) {
      showText(problem, reason(error), onError(error))
      const [, name] = /([a-z_]+)(?:\.\d+|(?<=columns)\..*)?$/.exec(error.field ?? "") ?? []
      const field = this.#button.form.querySelector(`[name="${name}"], [data-field="${name}"]`)
      if (field) mark(field, words(error))
      const isAtForm = this.#button.form.contains(document.activeElement) // otherwise the page would jump
      if (isAtForm) problem.scrollIntoView({ block: "nearest" })
    } finally {
      this.isBusy = this.id !== null // another job may be followed now
    }
  }

  /** Follows a job, instead of the last one, and shows its result. Throws ApiError with the job's error. */
  async #follow(id, known) {
    this.#leave()
    this.#announce("")
    this.#parts.cancel.disabled = false
    const following = this.#following = new AbortController()
    this.id = id
    this.#last = { state: "queued" }
    this.#refresh()
    let result = null
    try {
      for await (const state of states(this.#path, following.signal)) {
        if (following.signal.aborted) break // another job is followed now
        if (state?.series) {
          this.#hooks.showBars(state.series, known)
          continue
        }
        if (state?.state !== this.#last?.state) this.#place = null
        this.#last = state
        if (state) this.recent.update(this.#path, state)
        if (state?.error) throw new ApiError(state.error.message, state.error)
        if (state && hasEnded(state)) {
          result = state.result
          break
        }
        this.#refresh()
      }
      if (this.#following === following) this.#leave()
      if (result) this.#hooks.show(result, known)
    } finally {
      if (this.#following === following) this.#leave()
      if (this.id === id) this.id = null
    }
  }

  /** Shows a line until the job's own state is known: while the job is sent, for example. */
  #announce(text) {
    const { box, cancel } = this.#parts
    Object.assign(cancel, { disabled: true, textContent: "Cancel" })
    box.hidden = false
    this.#show({ text, share: null })
  }

  /** Hides the line and follows no job. A job goes on. */
  #leave() {
    this.#following?.abort()
    this.#following = this.#last = this.#place = null
    this.#parts.box.hidden = true
  }

  /** Reads how many jobs come before one that waits, and how long that takes, or the rest of one that runs. */
  async #estimate() {
    const [path, state] = [this.#path, this.#last?.state]
    if (!["queued", "running"].includes(state)) return
    const found = await get(`${path}?estimate=true`).catch(() => null) // what is wrong with the job, its states say
    if (this.#path !== path || found?.state !== state) return
    this.#place = { before: found.jobs_before, left: found.seconds_left }
    this.#refresh()
  }

  /** Describes the job again, because the workers may have changed. */
  #refresh() {
    if (!this.#following) return
    const lost = { text: "The connection was lost. The job goes on. Connecting again…", share: null }
    if (!this.#last) return this.#show(lost)
    this.#silence.note(false, JSON.stringify([this.id, this.#last]))
    this.#show(this.#last.state === "running" ? this.#hooks.describe(this.#last, this.#place, this.#silence.isLong)
      : waiting(this.#last, this.#place))
  }

  #show({ text, share, rest = "" }) {
    const { state, progress, share: shown } = this.#parts
    if (state.textContent !== text) state.textContent = text // screen readers read every change
    if (share === null) progress.removeAttribute("value")
    else progress.value = share
    const done = share === null ? "" : `${Math.floor(share * 100)} %`
    shown.textContent = [done, rest].filter(Boolean).join(" · ")
  }

  async #cancel() {
    const { cancel, problem } = this.#parts
    Object.assign(cancel, { disabled: true, textContent: "Cancelling…" })
    await remove(this.#path).catch((error) => {
      Object.assign(cancel, { disabled: false, textContent: "Cancel" })
      showText(problem, reason(error))
    })
  }
}

/** Detects that neither a worker's status nor a running job itself has shown progress for a while. */
export class Silence {
  #lastSign = performance.now()
  #lastState = ""

  /** A worker's status names the job, or the job has sent a state; only a new one ends the silence. */
  note(isNamed, state = this.#lastState) {
    if (isNamed || state !== this.#lastState) this.#lastSign = performance.now()
    this.#lastState = state
  }

  get isLong() { return performance.now() - this.#lastSign > LONG_MS }
}
