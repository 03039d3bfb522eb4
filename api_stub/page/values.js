/** Below the chart: the key of its marks, and the values of one bar. */

import { byId, made } from "./elements.js"
import { percent } from "./texts.js"

/** Shows a bar's values: one line for the known bar, one for its forecast. */
export function showValues({ text, bar, actual, mean, quantiles }, digits) {
  const number = (value) => value.toFixed(digits)
  const known = bar ?? actual
  const lines = []
  if (known) {
    const prices = ["open", "high", "low", "close"].map((name) => `${name} ${number(known[name])}`)
    if (known.volume !== undefined) prices.push(`volume ${volume(known.volume)}`)
    lines.push(`${actual ? "Actual" : "Bar"}: ${prices.join(" · ")}`)
  }
  if (mean) {
    const closes = [`close ${number(mean.close)}`, ...quantiles.map(([level, close]) => (
      `${percent(level)} ${number(close)}`))]
    if (mean.volume) closes.push(`volume ${volume(mean.volume)}`)
    lines.push(`Forecast: ${closes.join(" · ")}`)
  }
  byId("values").replaceChildren(made("strong", {}, text.replace("T", " ")), ...lines.map((line) => (
    made("span", { class: "line" }, line))))
}

/** Shows the key: bars, actual bars, the mean, quantile levels, paths. */
export function showKey({ hasActual, levels, hasPaths }) {
  const [outer, inner] = [[levels[0], levels.at(-1)], [levels[1], levels.at(-2)]]
  const between = (pair) => `${percent(pair[0])} to ${percent(pair[1])} of the paths`
  const entries = [["candle", "bars"]]
  if (hasActual) entries.push(["actual", "actual bars"])
  if (levels.length) entries.push(["mean", "mean path"], ["outer", between(outer)], ["inner", between(inner)])
  if (hasPaths) entries.push(["paths", "sample paths"])
  byId("key-of-chart").replaceChildren(...entries.map(([swatch, text]) => made(
    "li", {}, made("span", { class: `swatch swatch-${swatch}`, "aria-hidden": "true" }), text,
  )))
}

function volume(value) {
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 4, notation: "compact" })
}
