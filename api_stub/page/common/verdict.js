/** A verdict on a model: what it comes to in a few words, and its sentences. */

import { made } from "./elements.js"
import { inWords } from "./texts.js"

const SHORT = {
  good: "Better than all simple forecasts", bad: "Worse than a simple forecast", "": "No clear advantage over simple forecasts",
}

/** What a verdict comes to, in colour where it is good or bad; what its ranges do wrong; and the other sentences, folded. */
export function verdictLines(sentences) {
  if (!sentences.length) return []
  const kind = kindOf(sentences[0])
  const lines = sentences.map((line) => made("p", { class: kindOf(line) }, inWords(line)))
  const ranges = lines.filter((line, index) => line.className && /too (narrow|wide)/.test(sentences[index]))
  const others = lines.filter((line) => !ranges.includes(line))
  return [made("p", {}, made("strong", { class: kind }, SHORT[kind])), ...ranges,
    made("details", {}, made("summary", {}, "In detail"), ...others)]
}

/** Whether a sentence of the verdict is good or bad news, as a class of the style sheet. */
function kindOf(sentence) {
  if (/no clear difference|too few|perhaps/.test(sentence)) return ""
  if (/WORSE|% worse than|too (narrow|wide)/.test(sentence)) return "bad"
  return /^Better|% better than/.test(sentence) ? "good" : ""
}
