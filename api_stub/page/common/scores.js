/** How good forecasters are: verdicts, the difference from the baseline as a chart, and tables that compare them. */
import { barChart } from "../charts/bar_chart.js"
import { explainTerms, made, said, tableOf, whole } from "./elements.js"
import { count, figure, price, share, signed } from "./format.js"
import { inWords } from "./texts.js"

export const COLOURS = ["accent", "second", "third", "fourth"] // of models; what they must beat is "soft" or "control"
/** The simple forecasts that a model must beat; the first is the one that verdicts give a number for. */
export const NAIVE = {
  bootstrap: "Baseline", last_value: "Last close, with a spread", drift: "Recent trend",
  seasonal_naive: "Last season, with a spread", random_walk: "Random walk",
}
const held = (level) => [({ coverage }) => coverage[level], share, (value) => nearness(Math.abs(value - level))]
const nearness = (gap) => (gap <= 0.05 ? "good" : gap <= 0.1 ? "warn" : "bad")
const COLUMNS = [
  ["Error", ({ crps_scaled: error }) => error, figure, null, "pinball"],
  ["50 % range", ...held("0.5")],
  ["80 % range", ...held("0.8"), "range"],
  ["90 % range", ...held("0.9")],
  ["Right direction", ({ direction_accuracy: right }) => right, share],
]

/**
 * A table of `rows` of `[name, values]`, with the first cell of the `winner` in bold; a column is `[title, its value,
 * the text of that, its class (null for none), term of the glossary]`.
 */
export function comparison(title, caption, columns, rows, winner = null) {
  const isKnown = ([, valueOf]) => rows.some(([, values]) => (valueOf(values) ?? null) !== null)
  const known = columns.filter(isKnown)
  const described = (term) => (term ? { "data-term": term } : {})
  const cell = (name, values, [, valueOf, textOf, classOf], place) => {
    const value = valueOf(values) ?? null
    const kind = name === winner && !place ? "best" : value === null ? "" : classOf?.(value)
    return made("td", kind ? { class: kind } : {}, textOf(value))
  }
  const heads = known.map(([name, , , , term]) => made("th", { scope: "col", ...described(term) }, name))
  const row = ([name, values]) => made("tr", {},
    made("th", { scope: "row", ...described(name === NAIVE.bootstrap && "baseline") }, ...whole(name)),
    ...known.map((column, place) => cell(name, values, column, place)))
  const table = tableOf(made("tr", {}, made("th", { scope: "col" }, "Forecast by"), ...heads), rows.map(row))
  explainTerms(table)
  const scroll = made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table)
  return made("div", { class: "outcome" }, scroll, made("p", { class: "help" }, caption))
}

/** The table of the scores of `models`, by name, and of the simple forecasts, and below it what they were made on. */
export function scoresTable(models, naive, madeOn = "") {
  const names = Object.keys(models)
  const isBetter = ({ verdict }) => verdict === "better"
  const isWinner = ([name, { against = {} }]) => (
    names.every((other) => other === name || other in against) && Object.values(against).every(isBetter))
  const [winner] = Object.entries(models).find(isWinner) ?? []
  const simple = Object.entries(NAIVE).filter(([name]) => naive[name])
  const rows = names.map((name) => [name, models[name].scores])
  rows.push(...simple.map(([name, text]) => [text, naive[name]]))
  return comparison("Scores", madeOn + said("scores"), COLUMNS, rows, winner)
}

/** Draws how much better models, by name, are than the baseline: over all bars ahead, and over spans of them. */
export function drawAgainstBaseline(parent, models) {
  const lines = Object.entries(models).map(([text, { against: { bootstrap } = {} }], place) => (
    { text, colour: COLOURS[place % COLOURS.length], values: [bootstrap, ...(bootstrap?.by_span ?? [])] }))
  const shown = lines.filter(({ values: [all] }) => (all?.difference ?? null) !== null)
  if (!shown.length) return
  const [{ values: [, ...spans] }] = shown
  const groups = spans.map(({ first, last }) => (
    `${count(first)}${last > first ? `–${count(last)}` : ""}`))
  const written = (by) => signed(by.difference ?? by, (percent) => price(percent, 1))
  const spoken = shown.map(({ text, values: [{ difference, low, high }] }) => (
    `${text}: ${written(difference)} %${low === null ? "" : `, 95 % sure: ${written(low)} to ${written(high)} %`}`))
  const title = "Better or worse than the baseline, in % of its error, by bars ahead"
  const target = { text: "as good as the baseline; bars: 95 % sure, filled dots: clear", value: 0 }
  barChart(parent, title, ["all bars", ...groups], shown, target, written, spoken.join("; "))
}

const NUMBER = /^([\d.]+ % (?:better|worse)) (than .*?)(, which is no clear difference)?\)\.$/

/** The number of a verdict, such as "6.1 % better", and what it is compared with, in words; nothing if it has none. */
function numberOf([first = "", ...others]) {
  const [, number, than] = NUMBER.exec(others.find((line) => NUMBER.test(line) && kindOf(line) === kindOf(first))) ?? []
  return number ? [number.replaceAll(" ", "\u00a0"), inWords(than)] : []
}

/** What a verdict comes to in few words, such as "6.1 % better than the baseline". */
export function verdictText(sentences) {
  const kind = kindOf(sentences[0] ?? "")
  const [number, than] = kind ? numberOf(sentences) : []
  if (number) return `${number} ${than.replace(/ \(.*/, "")}`
  return said(kind || "unclear").toLowerCase().replace(/ over .*/, "")
}

/** What a verdict comes to, in colour where it is good or bad. */
export const verdictHead = ([first = ""]) => (
  made("strong", { class: kindOf(first) }, said(kindOf(first) || "unclear")))

/** The number stands large in a verdict, and pale if it is not clear. */
export const verdictBox = (kind, ...parts) => made("p", { class: `verdict ${kind ? "" : "unclear"}` }, ...parts)

/** A verdict in one sentence: its `head` and by how much; what its ranges do wrong; and the other sentences, folded. */
export function verdictLines(sentences, head = verdictHead(sentences)) {
  if (!sentences.length) return []
  const lines = sentences.map((line) => made("p", { class: kindOf(line) }, inWords(line)))
  const ranges = lines.filter((line, index) => line.className && /too (narrow|wide)/.test(sentences[index]))
  const others = lines.filter((line) => !ranges.includes(line))
  const [number, than] = numberOf(sentences)
  const text = number && ` ${than.replaceAll(" -", " −").replace("interval", "sure:").replaceAll(" %", "\u00a0%")})`
  if (number && head) head.append(made("span", { class: "heard" }, ": "))
  const by = number ? [made("b", { class: kindOf(sentences[0]) }, number), text] : []
  const folded = made("details", {}, made("summary", {}, "In detail"), ...others)
  return [verdictBox(kindOf(sentences[0]), head, ...by), ...ranges, folded]
}

/** Whether a sentence of the verdict is good or bad news, as a class of the style sheet. */
function kindOf(sentence) {
  if (/no clear difference|too few|perhaps/.test(sentence)) return ""
  if (/WORSE|% worse than|too (narrow|wide)/.test(sentence)) return "bad"
  return /^Better|% better than/.test(sentence) ? "good" : ""
}
