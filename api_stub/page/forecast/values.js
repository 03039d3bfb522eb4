/** Below the chart: the key of its marks, and the values of one bar. */

import { byId, made } from "../shared/elements.js"
import { compact, percent, rangeName } from "../shared/format.js"
import { explainTerms } from "../shared/glossary.js"

/** Shows a bar's values: one line for the known bar, one for its forecast, one for their difference. */
export function showValues({ text, bar, actual, mean, quantiles }, chart) {
  const number = (value) => chart.price(value)
  const known = bar ?? actual
  const lines = []
  if (known) lines.push(["", `${actual ? "What followed" : "History"}: ${candle(known, number)}`])
  if (mean) {
    const levels = quantiles.map(([level, close]) => `${percent(level)} ${number(close)}`)
    lines.push(["", `Forecast: ${candle(mean, number)}`], ["", ["Close of the paths", ...levels].join(" · ")])
  }
  if (actual && mean && quantiles.length) {
    const [[low, least], [high, most]] = [quantiles[0], quantiles.at(-1)]
    const isInside = least <= actual.close && actual.close <= most
    const error = mean.close - actual.close
    lines.push([isInside ? "good" : "bad", `The close was forecast ${number(Math.abs(error))} too ${error > 0 ? "high" : "low"}` +
      ` · ${isInside ? "inside" : "outside"} the ${rangeName(low, high)}`])
  }
  byId("values").replaceChildren(made("time", { datetime: text }, chart.time(text)), ...lines.map(([verdict, line]) => (
    made("span", { class: `line ${verdict}` }, line))))
}

/** Shows the key: the bars before the forecast, those that followed, the mean, ranges, paths. */
export function showKey({ hasBars, hasActual, levels, hasPaths, asCandles }) {
  const [outer, inner] = [[levels[0], levels.at(-1)], [levels[1], levels.at(-2)]]
  const entries = hasBars ? [["candle", "history"]] : []
  if (hasActual) entries.push(["actual", "what followed, hidden from the model"])
  if (levels.length) entries.push(asCandles ? ["mean-candle", "forecast, as candles"] : ["mean", "forecast"])
  if (levels.length > 1) entries.push(["outer", rangeName(...outer), "range"])
  if (levels.length > 3) entries.push(["inner", rangeName(...inner), "range"])
  if (hasPaths) entries.push(["paths", "simulated paths", "paths"])
  byId("key-of-chart").replaceChildren(...entries.map(([swatch, text, term]) => made(
    "li", {}, made("span", { class: `swatch swatch-${swatch}`, "aria-hidden": "true" }),
    made("span", term ? { "data-term": term } : {}, text),
  )))
  explainTerms(byId("key-of-chart"))
}

function candle(bar, number) {
  const prices = ["open", "high", "low", "close"].map((name) => `${name} ${number(bar[name])}`)
  if (bar.volume) prices.push(`volume ${compact(bar.volume)}`)
  return prices.join(" · ")
}
