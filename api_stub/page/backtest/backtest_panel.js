/** The backtest section: how good one or two models were on the past of a file. */

import { get, key } from "../service/api.js"
import { save } from "../common/downloads.js"
import { badField, byId, fillRows, made, numberIn, showText } from "../common/elements.js"
import { bars, count, figure, share, timeLeft } from "../common/format.js"
import { waiting } from "../service/pool.js"
import { SectionJob } from "../jobs/section_job.js"
import { Settings } from "../common/settings.js"
import { StepChart } from "../charts/step_chart.js"
import { hashOf, keepVerdicts } from "../common/skill.js"
import { reason } from "../common/texts.js"
import { verdictLines } from "../common/verdict.js"

const AT_HAND = "file:" // no data set can have this name
const COLOURS = ["accent", "mean"]
const STAGES = { reading: "Reading the candles", waiting: "Waiting for a worker", scoring: "Comparing with what followed" }
const SETTINGS = {
  model: "backtest-model", other: "backtest-other", windows: "backtest-windows", horizon: "backtest-horizon",
  lookback: "backtest-lookback", missing: "backtest-missing", drop_bad_rows: "backtest-drop",
}

export class BacktestPanel {
  #candles = null

  constructor(pool, recent, datasets) {
    this.pool = pool
    this.recent = recent
    this.datasets = datasets
    this.job = new SectionJob("backtests", {
      button: "test", box: "testing", state: "testing-state", progress: "testing-progress", share: "testing-share",
      cancel: "stop-testing", problem: "testing-problem",
    }, pool, recent, {
      forget: () => this.#forget(),
      describe: (...now) => this.#describe(...now),
      show: ({ report }) => this.#report(report),
    })
    this.settings = new Settings("backtest", SETTINGS)
    this.onCandles(null)
    byId("backtest-form").addEventListener("submit", (event) => this.#submit(event))
    byId("whole-report").addEventListener("click", (event) => this.#saveReport(event))
  }

  /** Offers the file that is open for a forecast. */
  onCandles(candles) {
    this.#candles = candles
    const text = candles ? `${candles.name}, open under Forecast` : "the file under Forecast: none is open yet"
    this.datasets.further.set("backtest-data", [[AT_HAND, text]])
    this.datasets.show()
  }

  async #submit(event) {
    event.preventDefault()
    if (this.job.isBusy) return
    showText(byId("testing-problem"), null)
    const isMissing = byId("backtest-data").value === AT_HAND && !this.#candles
    const isSame = byId("backtest-other").value && byId("backtest-other").value === byId("backtest-model").value
    const bad = isMissing ? "Open a file under Forecast first, or choose one that the service stores."
      : isSame ? "Compare with another model, or with none." : badField(byId("backtest-form"))
    showText(byId("backtest-form-problem"), bad)
    if (bad) return
    const name = byId("backtest-data").value
    await this.job.send(this.#jobOf(), `Backtest on ${name === AT_HAND ? this.#candles.name : name}`,
      name === AT_HAND ? { hash: hashOf(this.#candles) } : null)
  }

  #jobOf() {
    const path = byId("backtest-data").value
    const { name, timestamps, columns } = this.#candles ?? {}
    const other = byId("backtest-other").value
    const job = {
      schema_version: 1,
      data: path === AT_HAND ? { instruments: [{ id: name.slice(0, 200), timestamps, ...columns }] } : { path },
      models: [byId("backtest-model").value || null, ...(other ? [other] : [])],
      windows: numberIn("backtest-windows"),
      horizon: numberIn("backtest-horizon"),
      lookback: numberIn("backtest-lookback") ?? "auto",
    }
    const reading = { missing: byId("backtest-missing").value, drop_bad_rows: byId("backtest-drop").checked }
    return path === AT_HAND ? job : { ...job, reading }
  }

  /** Shows a backtest by its id: its progress, and then its report. */
  async openJob(id) {
    if (id === this.job.id) return
    await this.job.open(id)
  }

  #forget() {
    showText(byId("backtest-form-problem"), null)
    byId("tested").hidden = true
    byId("not-tested").hidden = false
  }

  #describe(now, place, isSilent) {
    if (now.state !== "running") return waiting(now, place)
    if (isSilent) {
      return { text: "The worker that ran this is gone. Another worker will go on where it was.", share: null }
    }
    const { progress } = now
    if (progress?.stage !== "forecasting") return { text: STAGES[progress?.stage] ?? STAGES.reading, share: null }
    const { forecasts_done: done, forecasts_total: total, seconds_left: left } = progress
    return { text: `${count(done)} of ${count(total)} forecasts`, share: total ? done / total : null, rest: timeLeft(left) }
  }

  #report({ models, naive, asked, num_windows: windows, instruments, left_out: leftOut }) {
    const hash = this.recent.hashOf(`backtests/${this.job.id}`)
    if (hash) keepVerdicts(hash, models)
    const names = Object.keys(models)
    const of = instruments.length === 1 ? instruments[0].name : `${count(instruments.length)} instruments`
    showText(byId("tested-what"), `${count(windows)} moments of ${of}: ${bars(asked.lookback)} read, ` +
      `${count(asked.horizon)} forecast.` + (leftOut.windows ? ` ${count(leftOut.windows)} of the forecasts failed.` : ""))
    byId("verdicts").replaceChildren(...names.map((name) => made(
      "div", {}, made("h3", {}, name), ...verdictLines(models[name].verdict))))
    const [baseline, title] = naive.bootstrap ? [naive.bootstrap, "a drift-free bootstrap"]
      : [naive.last_value, "repeating the last close"] // of a worker of 0.1.0
    const rows = [...names.map((name) => [name, models[name].scores]), [title, baseline]]
    fillRows(byId("backtest-scores").tBodies[0], rows.map(([name, scores]) => [
      name, figure(scores.crps_scaled), ...["0.5", "0.8", "0.9"].map((level) => share(scores.coverage[level])),
      share(scores.direction_accuracy),
    ]))
    byId("not-tested").hidden = true
    byId("tested").hidden = false // charts take the width of what is shown
    byId("by-horizon").replaceChildren()
    const lines = names.slice(0, COLOURS.length).map((name, index) => (
      { text: name, colour: COLOURS[index], values: models[name].by_horizon }))
    draw("Error by bar ahead", [...lines, { text: title, colour: "soft", values: baseline.by_horizon }],
      ({ crps_scaled: errors }) => errors)
    draw("Closes inside the 80 % range, by bar ahead", [...lines, { text: "80 %, as it should be", colour: "soft",
      values: { coverage: { 0.8: Array(asked.horizon).fill(0.8) } } }], ({ coverage }) => coverage["0.8"],
      { type: "custom", formatter: share, minMove: 0.01 })
    byId("whole-report").href = `v1/backtests/${encodeURIComponent(this.job.id)}/report`
  }

  /** A browser sends no key with a link, so with a key the report is fetched and saved. */
  async #saveReport(event) {
    if (!key.get()) return
    event.preventDefault()
    try {
      const path = new URL(byId("whole-report").href).pathname.split("/v1/").at(-1)
      save(await get(path, { headers: { Accept: "text/html" }, read: (answer) => answer.blob() }), "backtest.html")
    } catch (error) {
      showText(byId("testing-problem"), reason(error))
    }
  }
}

/** Draws one chart with a line for each forecaster. */
function draw(title, lines, valuesOf, format) {
  const part = made("div")
  byId("by-horizon").append(part)
  const options = { pointMarkersVisible: true }
  const chart = new StepChart(part, title, lines.map(({ text, colour }) => ({ text, colour, ...options })), format)
  lines.forEach(({ values }, index) => chart.series[index].setData(
    valuesOf(values).map((value, bar) => ({ time: bar + 1, ...(value === null ? {} : { value }) }))))
  chart.describe("")
  chart.figure.setAttribute("aria-label", `${title}. ${lines.map(({ text, values }) => (
    `${text}: ${figure(valuesOf(values)[0])} to ${figure(valuesOf(values).at(-1))}`)).join("; ")}`)
}
