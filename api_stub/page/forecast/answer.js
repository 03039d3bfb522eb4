/** The answer in words first: one sentence, then what the paths say of the whole forecast. */
import { byId, made, showFacts } from "../common/elements.js"
import { count, rangeName, share } from "../common/format.js"

/** The chance that every forecast of the page asks for. */
export const HIGHER = "close>last at end"

const EVENT = /^(open|high|low|close)([<>])(=?)(?:(last)(?:([+-])([\d.]+)%)?|([\d.]+))(at|by)(end|\d+)$/

/** An event such as "high>last+1% at 12" in words: "high more than 1 % above the last close at bar 12". */
export function eventInWords(event) {
  const [, column, sign, orEqual, last, side, part, level, when, bar] = EVENT.exec(event.replaceAll(" ", "")) ?? []
  if (!column) return event
  const isFurther = (sign === ">") === (side === "+")
  const [more, less] = orEqual ? ["at least", "at most"] : ["more than", "less than"]
  const far = `${isFurther ? more : less} ${part} % ${side === "+" ? "above" : "below"}`
  const relation = part ? far : `${orEqual ? "at or " : ""}${sign === ">" ? "above" : "below"}`
  return `${column} ${relation} ${last ? "the last close" : level} ${when} ${bar === "end" ? "the end" : `bar ${bar}`}`
}

const SURE = [[0.9, "Very likely"], [0.7, "Likely"], [0.55, "More likely than not"]]

/** The levels of the range that is told in words: that of 80 %, else the outermost; null without two levels. */
export function levelsInWords(quantiles) {
  const levels = Object.keys(quantiles).sort((one, other) => one - other)
  if (levels.length < 2) return null
  return levels.includes("0.1") && levels.includes("0.9") ? ["0.1", "0.9"] : [levels[0], levels.at(-1)]
}

/** The closes of the median, or of the mean if a job asked for no median. */
export const middleOf = ({ quantiles, mean }) => (quantiles["0.5"] ?? mean).close

/** Shows the sentence and the cards of a series of that name; null hides them. A phone has the `caution` here, in two words. */
export function showAnswer(series, name, lastClose, chart, caution) {
  byId("answer-box").hidden = !series
  byId("answer").replaceChildren(...(series ? sentence(series, name, lastClose, chart, caution) : []))
  showFacts(byId("chances"), series ? cards(series, chart) : [])
}

/**
 * A forecast in words. `write` has the texts of its prices and times, as `writingOf` makes them.
 * @returns What it `moved`, with the class `kind` if that is likely; by `when`; `between` which prices; how `sure`; `now`.
 */
export function headline({ timestamps, quantiles, events, mean }, last, write) {
  const end = middleOf({ quantiles, mean }).at(-1)
  const change = last === undefined ? null : end / last - 1
  const isUp = change > 0
  const { probability: up, low: least, high: most } = events?.find(({ event }) => event === HIGHER) ?? {}
  const chance = isUp ? up : 1 - up
  const isFlat = Math.abs(change) < 0.0005
  const hasDirection = change !== null && !isFlat && (up === undefined || (isUp ? least > 0.5 : most < 0.5))
  const moved = change === null ? `At ${write.price(end)}` : hasDirection ? `${isUp ? "Up" : "Down"} ${share(Math.abs(change))}`
    : isFlat && up === undefined ? "Unchanged" : "No clear direction"
  const word = hasDirection && SURE.find(([from]) => chance >= from)?.[1]
  const levels = levelsInWords(quantiles)
  const ends = levels?.map((level) => quantiles[level].close.at(-1)) ?? [end, end]
  const [low, high, close] = write.rounded(...ends, last)
  const time = [write.shortTime(timestamps.at(-1)), write.clock].filter(Boolean).join(" ")
  return {
    moved,
    kind: !hasDirection || chance < SURE[1][0] ? "" : isUp ? "good" : "bad",
    when: `by ${time}`,
    between: levels ? `${rangeName(...levels)} ${low} to ${high}` : "",
    sure: change !== null && up !== undefined ? `${word ? `${word}: ` : ""}${share(chance)} of the paths end ${isUp ? "higher" : "lower"}` : "",
    now: change === null ? "" : `last close ${close}`,
  }
}

/** What moves, how far, by when and between which prices; then how sure that is, and from where. */
function sentence(series, name, last, chart, caution) {
  const { moved, kind, when, between, sure, now } = headline(series, last, chart)
  const rest = [sure, sure ? now : now.replace("l", "L")].filter(Boolean).join("; ")
  const tied = (text) => text.replaceAll(/ (?=%|[AP]M\b|range)/g, "\u00a0")
  const badge = caution ? ["\u00a0", made("span", { class: "badge" }, caution)] : []
  return [made("span", { class: "subject" }, name, made("span", { class: "heard" }, ": "), ...badge),
    made("span", { class: `moved ${kind}` }, tied(moved)), made("span", { class: "when" }, tied(` ${when}${between ? ", " : ". "}`)), between && tied(`${between}. `),
    made("span", { class: "rest" }, rest ? tied(`${rest}.`) : "")]
}

function cards({ quantiles, events, statistics }, chart) {
  const named = (event) => (event === HIGHER ? "Chance to end higher" : `Chance of ${eventInWords(event)}`)
  const facts = (events ?? []).map((chance) => [named(chance.event), ...inWords(chance)])
  const levels = levelsInWords(quantiles)
  if (levels) {
    const [low, high] = chart.rounded(...levels.map((level) => quantiles[level].close.at(-1)))
    facts.push(["Range at end", `${low} to ${high}`, `${Math.round(10 * (levels[1] - levels[0]))} of 10 paths end inside`, "range"])
  }
  if (statistics) {
    const { max_drawdown: drawdown, realised_volatility: volatility } = statistics
    facts.push(["Expected deepest fall", share(drawdown.mean), "from a close to a later, lower one", "drawdown"])
    if (volatility) facts.push(["Expected volatility", share(volatility.mean), "usual move over the whole forecast", "volatility"])
  }
  return facts.map(([name, value, meaning, term]) => [name, value, "", term, meaning])
}

/** A chance as its number and what it is counted from. */
function inWords({ probability, standard_error: error, low, high, num_hits: hits, num_paths: paths }) {
  const all = count(paths)
  if (!hits) return [share(0), `none of ${all} simulated paths (95 % sure: at most ${share(high)})`]
  if (error === null) return [share(1), `all of ${all} simulated paths (95 % sure: at least ${share(low)})`]
  return [share(probability), `95 % sure: ${share(low)} to ${share(high)}, as ${count(hits)} of ${all} simulated paths`]
}
