/** The sentences of a verdict on a model. */

import { made } from "./elements.js"
import { inWords } from "./texts.js"

/** A paragraph for each sentence, in colour where it says good or bad. */
export function verdictLines(sentences) {
  return sentences.map((line) => made("p", { class: kindOf(line) }, inWords(line)))
}

/** Whether a sentence of the verdict is good or bad news, as a class of the style sheet. */
function kindOf(sentence) {
  if (/no clear difference|too few|perhaps/.test(sentence)) return ""
  if (/WORSE|% worse than|too (narrow|wide)/.test(sentence)) return "bad"
  return /^Better|% better than/.test(sentence) ? "good" : ""
}
