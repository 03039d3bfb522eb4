/** The forecast section: a file, a form, a job, its chart and downloads. */

import { post } from "./api.js"
import { FileProblem, parseCandles, readCandles } from "./candle_file.js"
import { autoLookback } from "./choices.js"
import { asCsv, save } from "./downloads.js"
import { badField, byId, fillRows, made, numberIn, showText } from "./elements.js"
import { ForecastChart } from "./forecast_chart.js"
import { JobLine } from "./job_line.js"
import { isForecasting, isReady, mayCompute } from "./pool.js"
import { Silence } from "./silence.js"
import { bars, count, duration, percent, reason } from "./texts.js"
import { showKey, showValues } from "./values.js"

const QUANTILES = [0.1, 0.25, 0.5, 0.75, 0.9]
const MAX_BARS = 8192 // that a job may have
const SMALL = 20_000 // up to this many values per column, paths are requested even if they are not shown

export class ForecastPanel {
  #candles = null
  #jobId = null
  #silence = new Silence()
  #shown = null // the bars and the result made from them; the form may have changed since

  constructor(pool) {
    this.pool = pool
    this.chart = new ForecastChart(byId("chart"), showValues)
    this.job = new JobLine({
      box: "job", state: "job-state", progress: "job-progress", share: "job-share", cancel: "cancel",
      problem: "job-problem",
    })
    pool.onChange((state) => {
      if (state) this.#silence.onWorkers(state.workers.some((worker) => mayCompute(worker, this.#jobId)))
      this.#suggestLookback()
      this.job.refresh()
    })
    for (const id of ["horizon", "model"]) byId(id).addEventListener("input", () => this.#suggestLookback())
    for (const id of ["held-out", "lookback"]) byId(id).addEventListener("change", () => this.#preview())
    byId("file").addEventListener("change", () => this.#open(() => readCandles(byId("file").files[0])))
    byId("sample").addEventListener("click", () => this.#openSample())
    byId("forecast-form").addEventListener("submit", (event) => this.#submit(event))
    byId("paths").addEventListener("change", () => this.#draw())
    this.#acceptDrops()
    this.#offerDownloads()
  }

  #acceptDrops() {
    const area = byId("drop")
    const isOver = (event) => {
      event.preventDefault()
      area.classList.toggle("over", event.type === "dragover")
    }
    for (const name of ["dragover", "dragleave", "drop"]) area.addEventListener(name, isOver)
    area.addEventListener("drop", ({ dataTransfer: { files } }) => {
      if (files.length) this.#open(() => readCandles(files[0]))
    })
  }

  async #openSample() {
    await this.#open(async () => parseCandles(await (await fetch("sample.csv")).text(), "sample.csv"))
    byId("held-out").value = byId("horizon").value
    this.#preview()
  }

  async #open(read) {
    showText(byId("file-problem"), null)
    try {
      this.#candles = await read()
      byId("held-out").value = 0
      showText(byId("file-name"), `${this.#candles.name}: ${bars(this.#candles.length)}, ` +
        `${this.#candles.timestamps[0]} to ${this.#candles.timestamps.at(-1)}`)
      byId("run").disabled = false
      this.#preview()
    } catch (error) {
      const known = error instanceof FileProblem ? error.message : `The file cannot be read: ${error.message}`
      showText(byId("file-problem"), known)
    }
    byId("file").value = "" // so that the same file can be chosen again once it is corrected
  }

  /** The known bars and the held-out bars, as the form divides them. */
  #cut() {
    const heldOut = Math.min(numberIn("held-out") ?? 0, this.#candles.length - 1)
    const end = this.#candles.length - heldOut
    const lookback = numberIn("lookback") ?? this.#autoLookback ?? MAX_BARS
    return [this.#candles.slice(Math.max(0, end - lookback), end), this.#candles.slice(end)]
  }

  #preview() {
    if (!this.#candles) return
    const [lookback, actual] = this.#cut()
    this.#shown = { lookback, actual, result: null }
    this.#draw()
  }

  #draw() {
    if (!this.#shown) return
    const { lookback, actual, result } = this.#shown
    const series = result?.series[0] ?? null
    const wantsPaths = byId("paths").checked
    const hasPaths = wantsPaths && Boolean(series?.paths)
    byId("no-candles").hidden = true
    byId("figure").hidden = false
    this.chart.show(lookback, actual, series && { ...series, paths: hasPaths ? series.paths : null })
    showKey({ hasActual: actual.length > 0, levels: series ? Object.keys(series.quantiles) : [], hasPaths })
    for (const id of ["downloads", "numbers", "made-by"]) byId(id).hidden = !series
    showText(byId("paths-state"), series && wantsPaths && !hasPaths &&
      `This forecast came without its paths. Forecast again to get them; seed ${series.seed} gives the same one.`)
    byId("chart").setAttribute("aria-label", this.#described(series))
    if (series) this.#fillNumbers(series)
  }

  #described(series) {
    const { lookback } = this.#shown
    const known = `Candles of ${lookback.name}, ${bars(lookback.length)} up to ${lookback.timestamps.at(-1)}`
    if (!series) return known
    const [last, end] = [lookback.columns.close.at(-1), series.mean.close.at(-1)]
    return `${known}, close ${last}; forecast of ${bars(series.timestamps.length)}, mean close at the end ` +
      end.toFixed(this.chart.digits)
  }

  #fillNumbers({ timestamps, mean, quantiles }) {
    const table = byId("numbers").querySelector("table")
    const heads = ["Time", "Mean", ...Object.keys(quantiles).map(percent)]
    table.tHead.replaceChildren(made("tr", {}, ...heads.map((text) => made("th", { scope: "col" }, text))))
    fillRows(table.tBodies[0], timestamps.map((stamp, index) => [stamp, mean.close[index],
      ...Object.values(quantiles).map(({ close }) => close[index])].map((value) => (
      typeof value === "number" ? value.toFixed(this.chart.digits) : value))))
  }

  get #autoLookback() {
    return autoLookback(this.pool.last?.workers ?? [], byId("model").value, numberIn("horizon") ?? 0)
  }

  #suggestLookback() {
    byId("lookback").placeholder = String(this.#autoLookback ?? "auto")
  }

  #jobOf([lookback, actual]) {
    const series = { id: idOf(lookback.name), timestamps: lookback.timestamps, ...lookback.columns }
    const horizon = numberIn("horizon")
    if (actual.length >= horizon) series.future_timestamps = actual.timestamps.slice(0, horizon)
    // Chosen here, because JavaScript numbers cannot hold every seed that a worker may choose.
    const seed = numberIn("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0]
    return {
      schema_version: 1,
      series: [series],
      pred_len: horizon,
      lookback: numberIn("lookback") ?? "auto",
      sampling: {
        temperature: numberIn("temperature"), top_p: numberIn("top-p"), sample_count: numberIn("samples"), seed,
      },
      output: { quantiles: QUANTILES, paths: byId("paths").checked || horizon * numberIn("samples") <= SMALL },
      model: byId("model").value || null,
      device: byId("device").value,
      allow_fallback: byId("fallback").checked,
    }
  }

  async #submit(event) {
    event.preventDefault()
    if (this.#isRunning) return
    for (const id of ["form-problem", "job-problem", "device-warning", "job-warning"]) showText(byId(id), null)
    const bad = badField(byId("forecast-form"))
    if (bad) {
      showText(byId("form-problem"), bad)
      return
    }
    this.#preview()
    const { lookback, actual } = this.#shown
    const samples = numberIn("samples")
    this.#isRunning = true
    try {
      const { id, queue } = await post("forecasts", this.#jobOf([lookback, actual]))
      this.#jobId = id
      this.pool.refresh()
      const result = await this.job.follow(`forecasts/${id}`, (state) => this.#describe(state, queue))
      this.#shown = { lookback, actual, samples, result }
      this.#report(result)
    } catch (error) {
      showText(byId("job-problem"), this.#explained(error, lookback))
    } finally {
      this.#isRunning = false
      this.#jobId = null
    }
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
    return workers && !workers.some(isReady)
      ? { text: `No worker is ready. The job waits in the queue ${queue} until one is.`, share: null }
      : { text: `Waiting in the queue ${queue}`, share: null }
  }

  #report({ device, device_warning: warning, warnings, model, worker, timings_ms: timings, series }) {
    showText(byId("device-warning"), warning)
    const remarks = [...warnings.filter((text) => text !== warning), ...(series[0].warnings ?? [])]
    showText(byId("job-warning"), remarks.join(" "))
    byId("made-by").replaceChildren("Computed on ", made("strong", {}, device), ` by ${model.id} in ` +
      `${duration(timings.total / 1000)}, from ${this.#shown.lookback.name}, seed ${series[0].seed} (${worker})`)
    this.#draw()
  }

  /** An error as one line, with the line in the file if a bar is at fault. */
  #explained(error, lookback) {
    const line = lookback.lines[error.details?.row]
    return line === undefined ? reason(error) : `Line ${line} of ${lookback.name}: ${reason(error)}`
  }

  #offerDownloads() {
    const name = () => `forecast-${this.#shown.lookback.name.replace(/\.[^.]*$/, "")}`
    byId("download-csv").addEventListener("click", () => {
      save(new Blob([asCsv(this.#shown.result.series[0])], { type: "text/csv" }), `${name()}.csv`)
    })
    byId("download-json").addEventListener("click", () => {
      save(new Blob([JSON.stringify(this.#shown.result, null, 2)], { type: "application/json" }), `${name()}.json`)
    })
    byId("download-png").addEventListener("click", async () => {
      const { lookback, samples, result: { model, device } } = this.#shown
      const title = `${lookback.name}: ${model.id} on ${device}, ${count(samples)} samples`
      save(await this.chart.picture(title), `${name()}.png`)
    })
  }
}

/** A valid id for a series, from the file's name: printable, at most 200 characters. */
function idOf(name) {
  return [...name.replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, "_")].slice(0, 200).join("")
}
