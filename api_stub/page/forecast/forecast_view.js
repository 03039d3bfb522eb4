/** The outcome of a forecast: its chart, values, key, score, table and downloads. */

import { showChances } from "./chances.js"
import { caution } from "../service/choices.js"
import { asCsv, save } from "../shared/downloads.js"
import { byId, fillRows, made, showText } from "../shared/elements.js"
import { ForecastChart } from "./forecast_chart.js"
import { scoreOf, showScore } from "./score.js"
import { bars, count, duration, percent } from "../shared/format.js"
import { deviceName, inWords } from "../shared/texts.js"
import { showKey, showValues } from "./values.js"

/** Whether a warning belongs next to the model's name. */
const isCaution = (text) => text.endsWith("for trying the service, not for trading.")

export class ForecastView {
  #shown = null

  constructor() {
    this.chart = new ForecastChart(byId("chart"), showValues)
    for (const id of ["paths", "candles"]) byId(id).addEventListener("change", () => this.redraw())
    this.#offerDownloads()
  }

  /**
   * Shows bars and the forecast made from them; the form may have changed since.
   *
   * @param lookback Candles before the forecast.
   * @param actual Candles after those, which may be empty.
   * @param samples The number of paths that were asked for; null if it is not known.
   * @param result The job's result, or null.
   * @param early The first bars of the result's series, while the job runs, or null.
   */
  show({ lookback, actual, samples = null, result = null, early = null }) {
    const first = result?.series[0] ?? early
    this.#shown = { lookback, actual, samples, series: first && withOrderedLevels(first), result }
    showText(byId("device-warning"), result?.device_warning && inWords(result.device_warning))
    const others = result?.warnings.filter((text) => text !== result.device_warning && !isCaution(text)) ?? []
    others.push(...(result?.series[0].warnings ?? []))
    if (result && !lookback.length) others.push("The history before this forecast is not in this browser: only the forecast is shown.")
    if (result?.series.length > 1) others.push(`This job forecast ${count(result.series.length)} instruments. The first one is shown.`)
    showText(byId("job-warning"), others.map(inWords).join(" "))
    if (result) this.#showOrigin(result)
    this.redraw()
  }

  #showOrigin({ device, engine, model, worker, warnings, timings_ms: timings }) {
    const { lookback, series } = this.#shown
    const note = warnings.find(isCaution) ?? caution(model.id, model.revision)
    byId("made-by").replaceChildren(`From ${lookback.name}, by `, made("strong", {}, model.id), " on the ",
      made("strong", {}, deviceName(device)), ` in ${duration(timings.total / 1000)}. Seed ${series.seed}. ` +
      `Worker ${worker}${engine ? `, ${engine} engine` : ""}. `,
      ...(note ? [made("span", { class: "badge" }, note)] : []))
  }

  /** Shows the same again, as the boxes below the chart say. */
  redraw() {
    if (!this.#shown) return
    const { lookback, actual, series, result } = this.#shown
    const [wantsPaths, asCandles] = [byId("paths").checked, byId("candles").checked]
    const hasPaths = wantsPaths && Boolean(series?.paths)
    byId("no-candles").hidden = true
    byId("figure").hidden = byId("chart-keys").hidden = false
    this.chart.show(lookback, actual, series && { ...series, paths: hasPaths ? series.paths : null }, asCandles)
    showKey({
      hasBars: lookback.length > 0, hasActual: actual.length > 0, hasPaths, asCandles,
      levels: series ? Object.keys(series.quantiles) : [],
    })
    for (const id of ["downloads", "numbers", "made-by"]) byId(id).hidden = !result
    showText(byId("paths-state"), result && wantsPaths && !hasPaths &&
      `This forecast came without its simulated paths. Forecast again to get them; seed ${series.seed} gives the same forecast.`)
    byId("chart").setAttribute("aria-label", this.#described)
    showChances(result && series, (value) => this.chart.price(value))
    showScore(result && scoreOf(lookback, actual, series), (value) => this.chart.price(value))
    if (result) this.#fillNumbers(series)
  }

  get #described() {
    const { lookback, series } = this.#shown
    const known = lookback.length && `Candles of ${lookback.name}, ${bars(lookback.length)} up to ` +
      `${this.chart.time(lookback.timestamps.at(-1))}, close ${this.chart.price(lookback.columns.close.at(-1))}`
    const ahead = series && `forecast of ${bars(series.timestamps.length)}, last close ` +
      this.chart.price(series.mean.close.at(-1))
    return [known, ahead].filter(Boolean).join("; ")
  }

  #fillNumbers({ timestamps, mean, quantiles }) {
    const { actual } = this.#shown
    const closes = new Map(actual.timestamps.map((stamp, index) => [stamp, actual.columns.close[index]]))
    const columns = [["Forecast", mean.close], ...Object.entries(quantiles).map(([level, { close }]) => [percent(level), close])]
    if (closes.size) {
      const known = timestamps.map((stamp) => closes.get(stamp))
      columns.push(["What followed", known], ["Missed by", known.map((close, index) => close && mean.close[index] - close)])
    }
    const table = byId("numbers").querySelector("table")
    const heads = ["Time", ...columns.map(([name]) => name)]
    table.tHead.replaceChildren(made("tr", {}, ...heads.map((text) => made("th", { scope: "col" }, text))))
    fillRows(table.tBodies[0], timestamps.map((stamp, index) => (
      [made("time", { datetime: stamp }, this.chart.time(stamp)), ...columns.map(([, values]) => this.chart.price(values[index]))])))
  }

  #offerDownloads() {
    const name = () => `forecast-${this.#shown.lookback.name.replace(/\.[^.]*$/, "")}`
    byId("download-csv").addEventListener("click", () => {
      save(new Blob([asCsv(this.#shown.series)], { type: "text/csv" }), `${name()}.csv`)
    })
    byId("download-json").addEventListener("click", () => {
      save(new Blob([JSON.stringify(this.#shown.result, null, 2)], { type: "application/json" }), `${name()}.json`)
    })
    byId("download-png").addEventListener("click", async () => {
      const { lookback, samples, result: { model, device } } = this.#shown
      const title = `${lookback.name}: ${model.id} on ${device}${samples ? `, ${count(samples)} paths` : ""}`
      save(await this.chart.picture(title), `${name()}.png`)
    })
  }
}

/** A series whose quantiles are in ascending order; a job may ask for them in any. */
function withOrderedLevels(series) {
  const ordered = Object.entries(series.quantiles).sort(([one], [other]) => one - other)
  return { ...series, quantiles: Object.fromEntries(ordered) }
}
