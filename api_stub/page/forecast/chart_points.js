/** What a chart shows at each time: a known bar, a bar that followed, the forecast of it, and earlier ones. */
import { mapValues } from "../common/format.js"
import { chartTimes } from "../common/times.js"

/**
 * The points of a chart by their seconds.
 * @returns `{texts, points}`: the timestamps, and a map from seconds to `{text, bar, actual, mean, quantiles, paths,
 *   past}`, each as far as there is one: `quantiles` are pairs of a level and a close, `paths` the closes of the paths,
 *   `past` the quantiles of each of the earlier forecasts by level, null where it has none.
 */
export function pointsOf(lookback, actual, forecast, past = []) {
  const stamps = [...lookback.timestamps, ...actual.timestamps]
  const known = new Set(stamps)
  const future = forecast?.timestamps.filter((stamp) => !known.has(stamp)) ?? []
  const all = [...stamps, ...future]
  const times = chartTimes(all)
  // The times of the forecast may differ from those of the actual bars: they are sorted together.
  const order = [...all.keys()].sort((one, other) => times[one] - times[other])
  const [texts, seconds] = [all, times].map((of) => order.map((index) => of[index]))
  const at = new Map(texts.map((text) => [text, { text }]))
  fillBars(lookback, "bar", at)
  fillBars(actual, "actual", at)
  forecast?.timestamps.forEach((stamp, index) => {
    const quantiles = Object.entries(forecast.quantiles).map(([level, table]) => [level, table.close[index]])
    const mean = mapValues(forecast.mean, (of) => of[index])
    const paths = forecast.paths?.close.map((path) => path[index]) ?? null
    Object.assign(at.get(stamp), { mean, quantiles, paths })
  })
  past.forEach(({ timestamps, quantiles }, place) => timestamps.forEach((stamp, index) => {
    const point = at.get(stamp) // none if the bar never came
    if (!point) return
    point.past ??= past.map(() => null)
    point.past[place] = mapValues(quantiles, ({ close }) => close[index])
  }))
  return { texts, points: new Map(texts.map((text, index) => [seconds[index], at.get(text)])) }
}

function fillBars(candles, name, at) {
  candles.timestamps.forEach((stamp, index) => {
    at.get(stamp)[name] = mapValues(candles.columns, (of) => of[index])
  })
}
