/** The forecast section: opens a file, sends its job, follows the job, and shows the outcome. */
import { CandleFile, Candles } from "./candle_file.js"
import { byId, showText } from "../common/elements.js"
import { ForecastForm } from "./forecast_form.js"
import { ForecastView } from "./forecast_view.js"
import { bars, timeLeft } from "../common/format.js"
import { isForecasting, mayCompute } from "../service/pool.js"
import { SectionJob } from "../jobs/section_job.js"
import { hashOf } from "../common/skill.js"
import { Settings, isFree, propose, showChanged } from "../common/settings.js"

export class ForecastPanel {
  #candles = null

  /** Calls `onCandles` with the candles of each file that is opened. */
  constructor(pool, recent, onCandles) {
    Object.assign(this, { pool, recent, onCandles, form: new ForecastForm(), view: new ForecastView() })
    pool.onChange((state) => state && this.form.onPool(state))
    this.job = new SectionJob("forecasts", "run", "job", pool, recent, {
      forget: () => ["device-warning", "job-warning"].forEach((id) => showText(byId(id), null)),
      submit: () => this.#send(),
      describe: (...now) => this.#describe(...now),
      show: (result, known) => this.#report(result, known),
      showBars: (series, known) => this.view.show({ ...(known ?? withoutCandles({ series })), early: series[0] }),
      worksOn: mayCompute,
    })
    for (const id of ["held-out", "lookback", "timezone"]) byId(id).addEventListener("change", () => this.#preview())
    this.file = new CandleFile((candles) => this.#open(candles))
    this.settings = new Settings("forecast", () => this.#onSettings())
    byId("sample").addEventListener("click", () => this.#openSample())
    byId("run-sample").addEventListener("click", async () => {
      await this.#openSample()
      byId("forecast-form").requestSubmit()
    })
  }

  async #openSample() {
    this.file.openCandles(await readSample())
    if (isFree("held-out")) propose("held-out", byId("horizon").value)
    this.#preview()
  }

  #open(candles) {
    this.#candles = candles
    this.onCandles(candles)
    this.form.onCandles(candles)
    if (isFree("held-out")) propose("held-out", 0)
    this.#preview()
  }

  #onSettings() {
    this.form.explain()
    this.view.redraw()
    this.#preview()
    this.file.reread()
    showChanged("forecast-advanced")
  }

  /** Shows the example of the first screen, unless there is something else to show by now. */
  async showExample() {
    if (!byId("figure").hidden) return
    const example = await readExample()
    if (!byId("figure").hidden) return
    this.view.show(example)
    if (isFree("held-out")) propose("held-out", example.actual.length)
  }

  #preview() { if (this.#candles) this.view.show(this.form.cut(this.#candles)) }

  #send() {
    this.#preview()
    const cut = this.form.cut(this.#candles)
    const job = this.form.jobOf(cut)
    const known = { ...cut, samples: job.sampling.sample_count, hash: hashOf(this.#candles) }
    this.job.send(job, `${cut.lookback.name}, ${bars(job.pred_len)}`, known)
  }

  /** Shows a job by its id: its progress, and then its result with the candles that this browser has of it. */
  async openJob(id) {
    if (id === this.job.id) return
    const known = this.recent.candlesOf(`forecasts/${id}`)
    if (known) this.view.show(known)
    await this.job.open(id, known)
    this.showExample() // if there is nothing to show, such as after an error
  }

  #report(result, known) {
    this.form.fold(true)
    this.view.show({ ...(known ?? withoutCandles(result)), result })
    byId("chart").scrollIntoView({ block: "nearest" })
  }

  #describe(now, place, isSilent) {
    const { bars_done: done, bars_total: total } = now
    const workers = this.pool.last?.workers.filter(isForecasting)
    // A stopped worker stays in the list until it has finished its jobs. A job that waits for its model or is
    // computed in a separate process reports no total and is not in the list of any worker.
    const isGone = (workers && !workers.length) || (total && isSilent)
    if (isGone) return { text: "The worker that computed this is gone. Another worker will start it again.", share: null }
    return { text: "Computing", share: total ? done / total : null, rest: total ? timeLeft(place?.left ?? null) : "" }
  }
}

/** What is known of a job that another browser has sent. */
function withoutCandles({ series: [{ id }] }) {
  const none = new Candles(id, [], {})
  return { lookback: none, actual: none }
}

/** The page's own sample, which is plain enough to be read here. */
async function readSample() {
  const text = await (await fetch("sample.csv")).text()
  const [[, ...titles], ...rows] = text.trim().split("\n").map((line) => line.split(","))
  const columns = titles.map((title, place) => [title, rows.map((row) => Number(row[place + 1]))])
  return new Candles("sample.csv", rows.map(([stamp]) => stamp), Object.fromEntries(columns))
}

/** What a ForecastView shows: the example's result with its candles. */
async function readExample() {
  const made = fetch("forecast/example.json").then((answer) => answer.json())
  const [candles, result] = await Promise.all([readSample(), made])
  const end = candles.timestamps.indexOf(result.series[0].timestamps[0])
  return { lookback: candles.slice(0, end), actual: candles.slice(end), result, isExample: true }
}
