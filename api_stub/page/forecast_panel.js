/** The forecast section: opens a file, sends its job, follows the job, and shows the outcome. */

import { ApiError, Unreachable, newRepeatKey, post } from "./api.js"
import { CandleFile, Candles } from "./candle_file.js"
import { byId, showText } from "./elements.js"
import { ForecastForm } from "./forecast_form.js"
import { ForecastView } from "./forecast_view.js"
import { JobLine } from "./job_line.js"
import { isForecasting, isReady, mayCompute } from "./pool.js"
import { Silence } from "./silence.js"
import { bars, reason } from "./texts.js"

export class ForecastPanel {
  #candles = null
  #jobId = null
  #silence = new Silence()

  constructor(pool, recent) {
    this.pool = pool
    this.recent = recent
    this.form = new ForecastForm()
    this.view = new ForecastView()
    this.job = new JobLine({
      box: "job", state: "job-state", progress: "job-progress", share: "job-share", cancel: "cancel",
      problem: "job-problem",
    }, recent)
    pool.onChange((state) => {
      if (state) {
        this.#silence.onWorkers(state.workers.some((worker) => mayCompute(worker, this.#jobId)))
        this.form.onPool(state)
      }
      this.job.refresh()
    })
    for (const id of ["held-out", "lookback"]) byId(id).addEventListener("change", () => this.#preview())
    this.file = new CandleFile((candles) => this.#open(candles))
    byId("sample").addEventListener("click", () => this.#openSample())
    byId("forecast-form").addEventListener("submit", (event) => this.#submit(event))
  }

  async #openSample() {
    await this.file.openSample()
    byId("held-out").value = byId("horizon").value
    this.#preview()
  }

  #open(candles) {
    this.#candles = candles
    byId("held-out").value = 0
    byId("run").disabled = false
    this.#preview()
  }

  #preview() {
    if (this.#candles) this.view.show(this.form.cut(this.#candles))
  }

  async #submit(event) {
    event.preventDefault()
    if (this.#isRunning) return
    this.#forgetProblems()
    const bad = this.form.problem
    if (bad) {
      showText(byId("form-problem"), bad)
      return
    }
    this.#preview()
    const cut = this.form.cut(this.#candles)
    await this.#send(this.form.jobOf(cut), newRepeatKey(), cut)
  }

  /** Sends a job and follows it. If no answer comes, the same job can be sent again: it is computed once. */
  async #send(job, repeatKey, cut) {
    const known = { ...cut, samples: job.sampling.sample_count }
    this.#forgetProblems()
    this.#isRunning = true
    this.job.leave()
    this.job.announce("Sending the job")
    try {
      const { id, queue } = await post("forecasts", job, repeatKey)
      this.recent.add(`forecasts/${id}`, `${cut.lookback.name}, ${bars(job.pred_len)}`, known)
      history.pushState(null, "", `#forecasts/${id}`)
      this.pool.refresh()
      await this.#follow(id, queue, known)
    } catch (error) {
      this.job.leave()
      const retry = error instanceof Unreachable ? () => this.#send(job, repeatKey, cut) : null
      showText(byId("job-problem"), reason(error), retry)
    } finally {
      this.#isRunning = this.#jobId !== null // another job may be followed now
    }
  }

  /** Shows a job by its id: its progress, and then its result with the candles that this browser has of it. */
  async openJob(id) {
    if (id === this.#jobId) return
    const address = `forecasts/${id}`
    const known = this.recent.candlesOf(address)
    this.#forgetProblems()
    if (known) this.view.show(known)
    byId("forecast").scrollIntoView()
    this.#isRunning = true
    try {
      await this.#follow(id, null, known)
    } catch (error) {
      if (error instanceof ApiError) this.recent.onRefusal(address, error)
      const retry = error.status === 401 ? () => this.openJob(id) : null
      showText(byId("job-problem"), reason(error), retry)
    } finally {
      this.#isRunning = this.#jobId !== null // another job may be followed now
    }
  }

  async #follow(id, queue, known) {
    this.#jobId = id
    try {
      const describe = (state) => this.#describe(state, queue)
      const onBars = (series) => this.view.show({ ...(known ?? withoutCandles({ series })), early: series[0] })
      const result = await this.job.follow(`forecasts/${id}`, describe, onBars)
      if (!result) return // another job is followed now
      this.view.show({ ...(known ?? withoutCandles(result)), result })
      byId("chart").scrollIntoView({ block: "nearest" })
    } finally {
      if (this.#jobId === id) this.#jobId = null
    }
  }

  #forgetProblems() {
    for (const id of ["form-problem", "job-problem", "device-warning", "job-warning"]) showText(byId(id), null)
  }

  /** While a job runs, the button keeps the focus but does nothing. */
  get #isRunning() {
    return byId("run").ariaDisabled === "true"
  }

  set #isRunning(value) {
    byId("run").ariaDisabled = String(value)
  }

  #describe({ state, bars_done: done, bars_total: total }, queue) {
    const workers = this.pool.last?.workers.filter(isForecasting)
    this.#silence.onJob([this.#jobId, state, done])
    if (state === "running") {
      // A stopped worker stays in the list until it has finished its jobs. A job that waits for its model or is
      // computed in a separate process reports no total and is not in the list of any worker.
      return (workers && !workers.length) || (total && this.#silence.isLong)
        ? { text: "The worker that computed this is gone. Another worker will start the job again.", share: null }
        : { text: "Computing", share: total ? done / total : null }
    }
    const where = queue ? ` in the queue ${queue}` : ""
    return workers && !workers.some(isReady)
      ? { text: `No worker is ready. The job waits${where} until one is.`, share: null }
      : { text: `Waiting${where}`, share: null }
  }
}

/** What is known of a job that another browser has sent. */
function withoutCandles({ series: [{ id }] }) {
  const none = new Candles(id, [], {})
  return { lookback: none, actual: none }
}
