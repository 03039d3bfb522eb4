/** What the paths say of the whole forecast: chances of events, and the range and unrest of the close. */

import { byId, showFacts } from "../shared/elements.js"
import { count, rangeName, share } from "../shared/format.js"
import { explainTerms } from "../shared/glossary.js"

/** The chance that every forecast of the page asks for. */
export const HIGHER = "close>last at end"

/** Shows a series' chances and statistics; a job of another client may have none. */
export function showChances(series, price) {
  const facts = (series?.events ?? []).map((chance) => [nameOf(chance.event), inWords(chance)])
  const levels = Object.keys(series?.quantiles ?? {})
  if (levels.length > 1) {
    const [low, high] = [levels[0], levels.at(-1)].map((level) => price(series.quantiles[level].close.at(-1)))
    facts.push([`Last close, ${rangeName(levels[0], levels.at(-1))}`, `${low} to ${high}`, "", "range"])
  }
  if (series?.statistics) {
    const { max_drawdown: drawdown, realised_volatility: volatility } = series.statistics
    facts.push(["Expected deepest fall on the way", share(drawdown.mean)])
    if (volatility) facts.push(["Expected volatility over the forecast", share(volatility.mean), "", "volatility"])
  }
  showFacts(byId("chances"), facts)
  explainTerms(byId("chances"))
}

function nameOf(event) {
  return event === HIGHER ? "Chance to end above the last known close" : `Chance of ${event}`
}

function inWords({ probability, standard_error: error, low, high, num_hits: hits, num_paths: paths }) {
  const all = count(paths)
  if (!hits) return `none of ${all} simulated paths (95 % sure: at most ${share(high)})`
  if (error === null) return `all of ${all} simulated paths (95 % sure: at least ${share(low)})`
  return `${share(probability)}, give or take ${share(error)} (${count(hits)} of ${all} simulated paths)`
}
