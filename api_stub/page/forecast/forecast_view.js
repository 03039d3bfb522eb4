/** The outcome of a forecast: its chart, values, key, score, table and downloads. */
import { levelsInWords, showAnswer } from "./answer.js"
import { caution } from "../service/choices.js"
import { byId, fillRows, made, save, showFacts, showText } from "../common/elements.js"
import { Candles, idOf } from "./candle_file.js"
import { ForecastChart } from "./forecast_chart.js"
import { PriceLine } from "./price_line.js"
import { bars, count, duration, lengthOf, percent, plural, rangeName, rough, share } from "../common/format.js"
import { noSkill } from "../common/skill.js"
import { deviceName, inWords } from "../common/texts.js"
import { showKey, showValues } from "./values.js"

/** Whether a warning belongs next to the model's name. */
const isCaution = (text) => text.endsWith("for trying the service, not for trading.")
const cautionOf = ({ model, warnings }) => warnings.find(isCaution) ?? caution(model.id, model.revision)
const shortly = (note) => note && (isCaution(note) ? "not for trading" : "not tested")

export class ForecastView {
  #shown = null
  #given = null
  #names = [] // of the series

  constructor() {
    this.chart = new ForecastChart(byId("chart"), showValues)
    this.line = new PriceLine(this.chart)
    const ranges = [...byId("ranges").children]
    const rangeOf = ({ dataset: { range } }) => Number(range) || range
    for (const button of ranges) button.addEventListener("click", () => this.chart.fit(rangeOf(button)))
    this.chart.onFit = (what) => ranges.forEach((button) => { button.ariaPressed = String(rangeOf(button) === what) })
    byId("log").addEventListener("change", () => this.chart.setLog(byId("log").checked))
    byId("series").addEventListener("change", () => {
      const place = this.#names.indexOf(byId("series").value)
      if (place >= 0) this.show({ ...this.#given, place })
    })
    for (const id of ["paths", "candles", "whole"]) byId(id).addEventListener("change", () => this.redraw())
    byId("numbers").querySelector("summary").addEventListener("click", () => this.#fillNumbers())
    this.#offerDownloads()
  }

  /**
   * Shows `lookback` candles, the `actual` ones after them, and a `result`, or the `early` bars of its series; the form may
   * have changed since. `samples` is the number of paths that were asked for, `hash` that of the file, by which backtests
   * of it are found, both null if unknown; `place` is the series that is shown: the candles are those of the first.
   */
  show(given) {
    const { samples = null, result = null, early = null, hash = null, isExample = false, place = 0 } = given
    const none = new Candles(result?.series[place]?.id ?? "", [], {})
    const [lookback, actual] = place ? [none, none] : [given.lookback, given.actual]
    const first = result?.series[place] ?? early
    this.#given = given
    this.#shown = { lookback, actual, samples, series: first && withOrderedLevels(first), result, isExample }
    byId("invite").hidden = !isExample
    this.#offerSeries(result?.series ?? [], place)
    const skill = result && noSkill(hash, result.model)
    showText(byId("no-skill"), skill && `A backtest of this model on this file found no skill: ${inWords(skill)}`)
    showText(byId("device-warning"), result?.device_warning && inWords(result.device_warning))
    const others = result?.warnings.filter((text) => text !== result.device_warning && !isCaution(text)) ?? []
    others.push(...(result?.series[place].warnings ?? []))
    if (result && !given.lookback.length) others.push("The history before this forecast is not in this browser: only the forecast is shown.")
    showText(byId("job-warning"), others.map(inWords).join(" "))
    if (result) this.#showOrigin(result)
    this.redraw()
  }

  #showOrigin({ device, engine, model, worker, warnings, timings_ms: timings }) {
    const { lookback, series, isExample } = this.#shown
    const note = cautionOf({ model, warnings })
    const name = made("strong", { class: "whole" }, model.id)
    const origin = isExample ? ["An example, forecast by ", name, ". "]
      : [`The next ${lengthOf(series.timestamps.length, series.timestamps)} of ${lookback.name}, by `, name, " on the ", made("strong", {}, deviceName(device)),
        ` in ${duration(timings.total / 1000)}. Seed ${series.seed}. Worker ${worker}${engine ? `, ${engine} engine` : ""}. `]
    byId("made-by").replaceChildren(...origin, ...(note ? [made("span", { class: "badge" }, note)] : []))
  }

  /** Offers the series of a result, by a list that is searched as one types; one series needs no list. */
  #offerSeries(series, chosen) {
    this.#names = series.map(({ id }, place) => id ?? `series ${count(place + 1)}`)
    byId("series-box").hidden = series.length < 2
    byId("series-names").replaceChildren(...this.#names.map((value) => made("option", { value })))
    byId("series").value = this.#names[chosen] ?? ""
  }

  /** Shows the same again, as the boxes below the chart say. */
  redraw() {
    if (!this.#shown) return
    const { lookback, actual, series, result, isExample } = this.#shown
    const [wantsPaths, asCandles] = [byId("paths").checked, byId("candles").checked]
    const hasPaths = wantsPaths && Boolean(series?.paths)
    byId("figure").hidden = byId("chart-keys").hidden = false
    this.chart.isWhole = byId("whole").checked
    this.chart.show(lookback, actual, series && { ...series, paths: hasPaths ? series.paths : null }, asCandles)
    showKey(byId("key-of-chart"), {
      hasBars: lookback.length > 0, followed: actual.length && "hidden bars, which followed", hasPaths, asCandles,
      levels: series ? Object.keys(series.quantiles) : [], chart: this.chart,
    })
    byId("whole").parentElement.hidden = !this.chart.cut && !byId("whole").checked
    for (const id of ["made-by", "download-png", "download-csv"]) byId(id).hidden = !result
    showText(byId("zone"), this.chart.zone && `Times: ${this.chart.zone}`)
    for (const id of ["download-json", "numbers"]) byId(id).hidden = !result || isExample
    showText(byId("paths-state"), result && wantsPaths && !hasPaths &&
      `This forecast came without its simulated paths. Forecast again to get them; seed ${series.seed} gives the same forecast.`)
    byId("chart").setAttribute("aria-label", this.#described)
    const last = lookback.columns.close?.at(-1)
    showAnswer(result && series, isExample ? "The sample, made-up prices" : idOf(lookback.name), last, this.chart, result && shortly(cautionOf(result)))
    this.line.onForecast(result && series, last)
    showFacts(byId("score"), result ? scoreOf(lookback, actual, series) : [])
    if (byId("numbers").open) this.#fillNumbers()
  }

  get #described() {
    const { lookback, series } = this.#shown
    const known = lookback.length && `Candles of ${lookback.name}, ${bars(lookback.length)} up to ` +
      `${this.chart.time(lookback.timestamps.at(-1))}, close ${this.chart.price(lookback.columns.close.at(-1))}`
    const last = series && this.chart.price(series.mean.close.at(-1))
    const ahead = series && `forecast of ${bars(series.timestamps.length)}, last close ${last}`
    return [known, ahead].filter(Boolean).join("; ")
  }

  #fillNumbers() {
    const { actual, series } = this.#shown
    if (!series) return
    const { timestamps, mean, quantiles } = series
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
    const on = (kind, blobOf) => byId(`download-${kind}`).addEventListener("click", async () => (
      save(await blobOf(this.#shown), `forecast-${this.#shown.lookback.name.replace(/\.[^.]*$/, "")}.${kind}`)))
    on("csv", ({ series, result }) => new Blob([asCsv(series, cautionOf(result))], { type: "text/csv" }))
    on("json", ({ result }) => new Blob([JSON.stringify(result, null, 2)], { type: "application/json" }))
    on("png", ({ lookback, samples, series, result }) => {
      const paths = samples ? `, ${count(samples)} paths` : ""
      const made = `${result.model.id} on ${result.device}${paths}, up to ${this.chart.time(series.timestamps.at(-1))}`
      return this.chart.picture(`${lookback.name}: ${made}`, cautionOf(result) ?? "A model's forecast, not advice.")
    })
  }
}

/** A series whose quantiles are in ascending order; a job may ask for them in any. */
function withOrderedLevels(series) {
  const ordered = Object.entries(series.quantiles).sort(([one], [other]) => one - other)
  return { ...series, quantiles: Object.fromEntries(ordered) }
}

/**
 * How a forecast did on the bars that followed, at the times that both have, as facts in colour where they are good or bad:
 * the mean absolute error of its mean close, that of the last known close, and how many closes its range holds.
 */
function scoreOf(lookback, actual, { timestamps, mean, quantiles }) {
  const closes = new Map(actual.timestamps.map((stamp, index) => [stamp, actual.columns.close[index]]))
  const known = timestamps.map((stamp, index) => [closes.get(stamp), index]).filter(([close]) => close !== undefined)
  if (!known.length) return []
  const last = lookback.columns.close.at(-1)
  const error = average(known.map(([close, index]) => Math.abs(mean.close[index] - close)))
  const unchanged = average(known.map(([close]) => Math.abs(last - close)))
  const gain = unchanged ? `${share(Math.abs(1 - error / unchanged))} ` : ""
  const [word, kind] = error < unchanged ? ["better", "good"] : ["worse", "bad"]
  const facts = [
    [`On ${plural(known.length, "hidden bar")}`, `${gain}${word} than no change`, kind],
    ["Average miss", `${rough(error)} (${share(error / average(known.map(([close]) => close)))}), no change ${rough(unchanged)}`],
  ]
  const bounds = levelsInWords(quantiles)
  if (!bounds) return facts
  const [low, high] = bounds.map((level) => quantiles[level].close)
  const inside = known.filter(([close, index]) => low[index] <= close && close <= high[index]).length
  const held = `${count(inside)} of ${count(known.length)}: ${share(inside / known.length)}`
  return [...facts, [`Closes inside the ${rangeName(...bounds)}`, `${held}, about ${percent(bounds[1] - bounds[0])} expected`]]
}

const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length

/** One row per bar: its time, the columns of the mean, the close of each quantile, and what must be said of the model. */
function asCsv({ timestamps, mean, quantiles }, caution) {
  const columns = { timestamps, ...mean }
  for (const [level, { close }] of Object.entries(quantiles)) columns[`close_${level}`] = close
  if (caution) columns.caution = timestamps.map(() => `"${caution}"`)
  const rows = timestamps.map((_, index) => Object.values(columns).map((values) => values[index]))
  return [Object.keys(columns), ...rows].map((cells) => `${cells.join(",")}\n`).join("")
}
