/** How good forecasters are: tables that compare them, a row for each, and verdicts. */

import { byId, explainTerms, made, whole } from "./elements.js"
import { count, figure, share } from "./format.js"
import { inWords } from "./texts.js"

const CAPTION = "Error: in usual moves of one bar, lower is better. Ranges: the share of closes inside, which should be what their name says."
/** How good a value is, from which the best one of a column follows. */
export const [MOST, LEAST] = [(value) => value, (value) => -value]
const near = (level) => (value) => -Math.abs(value - level)
const COLUMNS = [
  ["Error", ({ crps_scaled: error }) => error, figure, LEAST, "pinball"],
  ["50 % range", ({ coverage }) => coverage["0.5"], share, near(0.5)],
  ["80 % range", ({ coverage }) => coverage["0.8"], share, near(0.8), "range"],
  ["90 % range", ({ coverage }) => coverage["0.9"], share, near(0.9)],
  ["Right direction", ({ direction_accuracy: right }) => right, share, MOST],
]

/**
 * A table of `rows` of `[name, values]`, with the best of each column in bold; a column is `[title, its value, the text of that,
 * how good it is (null if no value is better), term of the glossary]`.
 */
export function comparison(title, caption, columns, rows) {
  const known = columns.map(([name, valueOf, ...rest]) => [name, (values) => valueOf(values) ?? null, ...rest])
    .filter(([, valueOf]) => rows.some(([, values]) => valueOf(values) !== null))
  const best = known.map(([, valueOf, , good]) => good && Math.max(...rows.flatMap(([, values]) => (valueOf(values) === null ? [] : good(valueOf(values))))))
  const cell = (values, place, [, valueOf, textOf, good] = known[place], value = valueOf(values)) => (
    made("td", good && value !== null && good(value) === best[place] ? { class: "best" } : {}, textOf(value)))
  const heads = known.map(([name, , , , term]) => made("th", { scope: "col", ...(term ? { "data-term": term } : {}) }, name))
  const table = made("table", {},
    made("thead", {}, made("tr", {}, made("th", { scope: "col" }, "Forecast by"), ...heads)),
    made("tbody", {}, ...rows.map(([name, values]) => made("tr", {}, made("th", { scope: "row" }, ...whole(name)),
      ...known.map((_, place) => cell(values, place))))))
  explainTerms(table)
  const scroll = made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table)
  return made("div", { class: "outcome" }, scroll, made("p", { class: "help" }, caption))
}

/** The table of scores of `[name, scores]`, and below it what they were made on. */
export const scoresTable = (rows, madeOn = "") => comparison("Scores", madeOn + CAPTION, COLUMNS, rows)

const SHORT = { good: "Better than all simple forecasts", bad: "Worse than a simple forecast", "": "No clear advantage over simple forecasts" }

const NUMBER = /^([\d.]+ % (?:better|worse)) (than .*?)(, which is no clear difference)?\)\.$/

/** What a verdict comes to, in colour where it is good or bad, by how much; what its ranges do wrong; and the other sentences, folded. */
export function verdictLines(sentences) {
  if (!sentences.length) return []
  const kind = kindOf(sentences[0])
  const lines = sentences.map((line) => made("p", { class: kindOf(line) }, inWords(line)))
  const ranges = lines.filter((line, index) => line.className && /too (narrow|wide)/.test(sentences[index]))
  const others = lines.filter((line) => !ranges.includes(line))
  const [, number, than] = NUMBER.exec(sentences.find((line) => NUMBER.test(line) && kindOf(line) === kind)) ?? []
  const text = number && ` ${inWords(than).replaceAll(" -", " −").replace("interval", "sure:").replaceAll(" %", "\u00a0%")})`
  const by = number ? [made("p", {}, made("b", { class: kind }, number), text), whisker(number, than, kind)] : []
  return [made("p", {}, made("strong", { class: kind }, SHORT[kind])), ...by, ...ranges, made("details", {}, made("summary", {}, "In detail"), ...others)]
}

const SCALES = [20, 50, 100, 1000] // in percent; few, so that two models mostly share one

/** The interval of a sentence as a dot and a whisker against no difference, in the middle of a scale. */
function whisker(number, than, kind) {
  const by = parseFloat(number) * (number.endsWith("worse") ? -1 : 1)
  const [low = by, high = by] = / ([+-][\d.]+) to ([+-][\d.]+)/.exec(than)?.slice(1).map(Number) ?? []
  const most = SCALES.find((scale) => scale >= Math.max(Math.abs(low), Math.abs(high)))
  const at = (value) => (110 + (100 * value) / most).toFixed(1)
  const svg = byId("whisker").content.firstElementChild.cloneNode(true)
  const [, range, dot, left, , right] = svg.children
  range.setAttribute("d", `M${at(low)} 9V17M${at(low)} 13H${at(high)}M${at(high)} 9V17`)
  dot.setAttribute("cx", at(by))
  left.textContent = `−${count(most)} %`
  right.textContent = `+${count(most)} %`
  svg.setAttribute("class", `whisker ${kind}`)
  return svg
}

/** Whether a sentence of the verdict is good or bad news, as a class of the style sheet. */
function kindOf(sentence) {
  if (/no clear difference|too few|perhaps/.test(sentence)) return ""
  if (/WORSE|% worse than|too (narrow|wide)/.test(sentence)) return "bad"
  return /^Better|% better than/.test(sentence) ? "good" : ""
}
