/** The key of the chart's marks, and the card with the values of one bar. */
import { byId, explainTerms, made, rowOf, tableOf } from "../common/elements.js"
import { compact, count, percent, rangeName } from "../common/format.js"
import { levelsInWords } from "./answer.js"

export const COLUMNS = ["open", "high", "low", "close"]

/** Shows a bar's values on a card; it is in view while a bar is pointed at. */
export function showValues({ text, bar, actual, mean, quantiles }, chart, { isPointed, isRight }) {
  const known = bar ?? actual
  const columns = [[actual ? "What followed" : "History", known], ["Forecast", mean]].filter(([, values]) => values)
  const cells = (textOf) => columns.map(([, values]) => textOf(values))
  const rows = COLUMNS.map((name) => rowOf(name[0].toUpperCase() + name.slice(1), ...cells((of) => chart.price(of[name]))))
  if (columns.some(([, { volume }]) => volume)) rows.push(rowOf("Volume", ...cells(({ volume }) => compact(volume ?? 0))))
  const head = made("tr", {}, made("td"), ...columns.map(([name]) => made("th", { scope: "col" }, name)))
  const parts = [made("time", { datetime: text }, chart.time(text)), tableOf(head, rows)]
  if (mean && quantiles.length) parts.push(rangesTable(quantiles, chart))
  const levels = actual && mean ? levelsInWords(Object.fromEntries(quantiles)) : null
  if (levels) {
    const [low, high] = levels.map((level) => Object.fromEntries(quantiles)[level])
    const isInside = low <= actual.close && actual.close <= high
    const error = mean.close - actual.close
    parts.push(made("p", { class: isInside ? "good" : "bad" }, `The close was forecast ${chart.price(Math.abs(error))} too ` +
      `${error > 0 ? "high" : "low"} · ${isInside ? "inside" : "outside"} the ${rangeName(...levels)}`))
  }
  byId("values").replaceChildren(...parts)
  byId("values").hidden = !isPointed
  byId("values").classList.toggle("aside", isRight)
}

/** The closes of the paths: the median, and each range from the narrowest on. */
function rangesTable(quantiles, chart) {
  const rows = []
  for (let [low, high] = [0, quantiles.length - 1]; low <= high; low += 1, high -= 1) {
    const [[under, least], [over, most]] = [quantiles[low], quantiles[high]]
    rows.unshift(low === high ? [Number(under) === 0.5 ? "Median" : percent(under), chart.price(least)]
      : [rangeName(under, over), `${chart.price(least)} – ${chart.price(most)}`])
  }
  return tableOf(null, rows.map((cells) => rowOf(...cells)))
}

/** Shows the key in a list: the bars before the forecast, those that followed, middle, ranges, paths, earlier forecasts. */
export function showKey(list, { hasBars, followed, levels, hasPaths = false, asCandles = false, numPast = 0, chart }) {
  const entries = hasBars ? [["candle", "history"]] : []
  if (followed) entries.push(["actual", followed])
  const middle = levels.includes("0.5") ? "forecast (median)" : "forecast"
  const term = levels.includes("0.5") ? "median" : null
  if (levels.length) entries.push(asCandles ? ["mean-candle", "forecast, as candles"] : ["mean", middle, term])
  const bands = bandsOf(levels)
  const beyond = chart.cut ? `, cut: ${chart.rounded(...chart.cut).join(" to ")}` : ""
  const named = (name) => rangeName(...bands[name]) + (name === "widest" ? beyond : "")
  for (const name of ["widest", "outer", "inner"]) if (bands[name]) entries.push([name, named(name), "range"])
  if (hasPaths) entries.push(["paths", "simulated paths", "paths"])
  if (numPast) entries.push(["past", numPast > 1 ? `ends of the ${count(numPast)} earlier forecasts` : "end of the earlier forecast"])
  list.replaceChildren(...entries.map(([swatch, text, term]) => made(
    "li", {}, made("span", { class: `swatch swatch-${swatch}`, "aria-hidden": "true" }),
    made("span", term ? { "data-term": term } : {}, text),
  )))
  explainTerms(list)
}

/** The levels of each band of the fan, `[low, high]` by its name: of many levels the three outermost pairs. */
export function bandsOf(levels) {
  const pairs = levels.slice(0, Math.floor(levels.length / 2)).map((level, place) => [level, levels.at(-1 - place)])
  const names = pairs.length > 2 ? ["widest", "outer", "inner"] : ["outer", "inner"]
  return Object.fromEntries(names.map((name, place) => [name, pairs[place]]))
}
