/** Below the chart: the key of its marks, and the values of one bar. */

import { byId, made } from "./elements.js"
import { percent } from "./texts.js"

/** Shows a bar's values: one line for the known bar, one for its forecast, one for their difference. */
export function showValues({ text, bar, actual, mean, quantiles }, digits) {
  const number = (value) => value.toFixed(digits)
  const known = bar ?? actual
  const lines = []
  if (known) lines.push(["", `${actual ? "Actual" : "Bar"}: ${candle(known, number)}`])
  if (mean) {
    const levels = quantiles.map(([level, close]) => `${percent(level)} ${number(close)}`)
    lines.push(["", `Forecast: ${candle(mean, number)}`], ["", ["Close", ...levels].join(" · ")])
  }
  if (actual && mean && quantiles.length) {
    const [[low, least], [high, most]] = [quantiles[0], quantiles.at(-1)]
    const isInside = least <= actual.close && actual.close <= most
    const error = mean.close - actual.close
    lines.push([isInside ? "good" : "bad", `Error of the close ${error > 0 ? "+" : ""}${number(error)} · ` +
      `actual close ${isInside ? "inside" : "outside"} ${percent(low)} to ${percent(high)}`])
  }
  byId("values").replaceChildren(made("strong", {}, text.replace("T", " ")), ...lines.map(([verdict, line]) => (
    made("span", { class: `line ${verdict}` }, line))))
}

/** Shows the key: bars, actual bars, the mean, quantile levels, paths. */
export function showKey({ hasBars, hasActual, levels, hasPaths, asCandles }) {
  const [outer, inner] = [[levels[0], levels.at(-1)], [levels[1], levels.at(-2)]]
  const between = (pair) => `${percent(pair[0])} to ${percent(pair[1])} of the paths`
  const entries = hasBars ? [["candle", "bars"]] : []
  if (hasActual) entries.push(["actual", "actual bars"])
  if (levels.length) entries.push(asCandles ? ["mean-candle", "mean of the paths"] : ["mean", "mean path"])
  if (levels.length > 1) entries.push(["outer", between(outer)])
  if (levels.length > 3) entries.push(["inner", between(inner)])
  if (hasPaths) entries.push(["paths", "sample paths"])
  byId("key-of-chart").replaceChildren(...entries.map(([swatch, text]) => made(
    "li", {}, made("span", { class: `swatch swatch-${swatch}`, "aria-hidden": "true" }), text,
  )))
}

function candle(bar, number) {
  const prices = ["open", "high", "low", "close"].map((name) => `${name} ${number(bar[name])}`)
  if (bar.volume) prices.push(`volume ${volume(bar.volume)}`)
  return prices.join(" · ")
}

function volume(value) {
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 4, notation: "compact" })
}
