/** The job of one section of the page: sent, or opened by its link, and followed to its end. One at a time. */

import { ApiError, Unreachable, newRepeatKey, post } from "../service/api.js"
import { byId, mark, showText } from "../common/elements.js"
import { JobLine } from "./job_line.js"
import { Silence } from "./silence.js"
import { reason, words } from "../common/texts.js"

export class SectionJob {
  #kind
  #button
  #problem
  #line
  #hooks
  #silence = new Silence()
  /** The id of the job that is followed; null if there is none. */
  id = null

  /**
   * @param kind The jobs' path below v1/, such as "forecasts".
   * @param button The id of the button that sends a job.
   * @param line The name of its JobLine.
   * @param hooks `forget` hides what earlier jobs have left; `describe` returns `{text, share, rest}`, as a JobLine takes it, for a
   *   state, a place in the queue, and whether the job has been silent for long; `show` shows a result, with what this browser has
   *   stored about the job; `showBars` does so for a forecast that is not done; `worksOn` is whether a worker may have the job of
   *   an id in hand; `fields` are the ids of the form's fields, by the fields of a job, to mark what the service refuses.
   */
  constructor(kind, button, line, pool, recent, hooks) {
    this.#kind = kind
    this.#button = byId(button)
    this.#problem = byId(`${line}-problem`)
    this.#line = new JobLine(line, recent)
    this.#hooks = { showBars: () => {}, fields: {}, worksOn: ({ training }, id) => training?.job_id === id, ...hooks }
    this.pool = pool
    this.recent = recent
    pool.onChange((state) => {
      if (state) this.#silence.note(state.workers.some((worker) => this.#hooks.worksOn(worker, this.id)))
      this.#line.refresh()
      this.#line.estimate()
    })
  }

  /** Whether a job is sent or followed. Meanwhile the button keeps the focus but does nothing. */
  get isBusy() { return this.#button.ariaDisabled === "true" }

  set isBusy(value) { this.#button.ariaDisabled = String(value) }

  /**
   * Sends a job and follows it. If no answer comes, the same job can be sent again: it is computed once.
   * @param title What it is, for the list of jobs.
   * @param known What this browser keeps to show the job again.
   */
  async send(job, title, known = null, repeatKey = newRepeatKey()) {
    await this.#busy(async () => {
      this.#line.leave()
      this.#line.announce("Sending")
      const { id } = await post(this.#kind, job, repeatKey)
      this.recent.add(`${this.#kind}/${id}`, title, known, job)
      history.pushState(null, "", `#${this.#kind}/${id}`)
      this.pool.refresh()
      await this.#follow(id, known)
    }, (error) => {
      this.#line.leave()
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
    this.#hooks.forget()
    showText(this.#problem, null)
    this.isBusy = true
    try {
      await work()
    } catch (error) {
      showText(this.#problem, reason(error), onError(error))
      const field = this.#hooks.fields[error.field?.replace(/\.\d+$|(?<=columns)\..*/, "")]
      if (field) mark(byId(field), words(error))
      const isAtForm = this.#button.form.contains(document.activeElement) // otherwise the page would jump
      if (isAtForm) this.#problem.scrollIntoView({ block: "nearest" })
    } finally {
      this.isBusy = this.id !== null // another job may be followed now
    }
  }

  async #follow(id, known) {
    this.id = id
    try {
      const describe = (state, place) => {
        this.#silence.note(false, JSON.stringify([id, state]))
        return this.#hooks.describe(state, place, this.#silence.isLong)
      }
      const onBars = (series) => this.#hooks.showBars(series, known)
      const result = await this.#line.follow(`${this.#kind}/${id}`, describe, onBars)
      if (result) this.#hooks.show(result, known) // otherwise another job is followed now
    } finally {
      if (this.id === id) this.id = null
    }
  }
}
