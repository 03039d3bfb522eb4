/** What the paths say of the whole forecast: chances of events, and the range and unrest of the close. */

import { byId, showFacts } from "./elements.js"
import { percent } from "./texts.js"

/** The chance that every forecast of the page asks for. */
export const HIGHER = "close>last at end"

/** Shows a series' chances and statistics; a job of another client may have none. */
export function showChances(series, price) {
  const facts = (series?.events ?? []).map((chance) => [nameOf(chance.event), inWords(chance)])
  const levels = Object.keys(series?.quantiles ?? {})
  if (levels.length > 1) {
    const [low, high] = [levels[0], levels.at(-1)].map((level) => price(series.quantiles[level].close.at(-1)))
    facts.push([`Close at the end, ${percent(levels[0])} to ${percent(levels.at(-1))} of paths`, `${low} to ${high}`])
  }
  if (series?.statistics) {
    const { max_drawdown: drawdown, realised_volatility: volatility } = series.statistics
    facts.push(["Deepest fall on the way, mean over the paths", share(drawdown.mean)])
    if (volatility) facts.push(["Realised volatility up to the end, mean", share(volatility.mean)])
  }
  showFacts(byId("chances"), facts)
}

function nameOf(event) {
  return event === HIGHER ? "Chance to end above the last close" : `Chance of ${event}`
}

function inWords({ probability, standard_error: error, low, high, num_hits: hits, num_paths: paths }) {
  if (!hits) return `fewer than 1 in ${paths} paths (95 %: at most ${share(high)})`
  if (error === null) return `all of ${paths} paths (95 %: at least ${share(low)})`
  return `${share(probability)} ± ${(100 * error).toFixed(1)} (${hits} of ${paths} paths)`
}

function share(part) {
  return `${(100 * part).toFixed(1)} %`
}
