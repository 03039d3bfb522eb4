/** How a forecast did on the held-out bars. */

import { byId, showFacts } from "../common/elements.js"
import { bars, count, percent, rangeName, rough, share } from "../common/format.js"
import { levelsInWords } from "./answer.js"

/**
 * Compares a forecast with the bars that followed, at the times that both have.
 * @returns `{numBars, error, unchanged, level, inside, bounds}`: the mean absolute errors of the mean close and of the last known close, the mean of
 *   the actual closes, how many of these are in the range that is told in words, and its levels (null without quantiles). Null if no time is in both.
 */
export function scoreOf(lookback, actual, { timestamps, mean, quantiles }) {
  const closes = new Map(actual.timestamps.map((stamp, index) => [stamp, actual.columns.close[index]]))
  const known = timestamps.map((stamp, index) => [closes.get(stamp), index]).filter(([close]) => close !== undefined)
  if (!known.length) return null
  const bounds = levelsInWords(quantiles)
  const [low, high] = bounds?.map((level) => quantiles[level].close) ?? []
  const last = lookback.columns.close.at(-1)
  return {
    numBars: known.length,
    error: average(known.map(([close, index]) => Math.abs(mean.close[index] - close))),
    unchanged: average(known.map(([close]) => Math.abs(last - close))),
    level: average(known.map(([close]) => close)),
    inside: bounds && known.filter(([close, index]) => low[index] <= close && close <= high[index]).length,
    bounds,
  }
}

/** Shows a score as facts, in colour where it says good or bad; null hides it. */
export function showScore(score) {
  if (!score) return showFacts(byId("score"), [])
  const { numBars, error, unchanged, level, inside, bounds } = score
  const isBetter = error < unchanged
  const gain = unchanged ? `${share(Math.abs(1 - error / unchanged))} ` : ""
  const facts = [
    ["Compared with what followed", bars(numBars)],
    ["Average miss of the close", `${rough(error)} (${share(error / level)})`],
    ["A guess of no change missed by", `${rough(unchanged)}: the forecast is ${gain}${isBetter ? "better" : "worse"}`, isBetter ? "good" : "bad"],
  ]
  if (bounds) {
    const [low, high] = bounds
    facts.push([`Closes inside the ${rangeName(low, high)}`,
      `${count(inside)} of ${count(numBars)}: ${share(inside / numBars)}, about ${percent(high - low)} expected`])
  }
  return showFacts(byId("score"), facts)
}

function average(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}
