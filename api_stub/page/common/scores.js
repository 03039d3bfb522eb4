/** Tables that compare forecasters: a row for each, with scores of the contract. */

import { made } from "./elements.js"
import { figure, share } from "./format.js"
import { explainTerms } from "./glossary.js"

const CAPTION = "Error: in usual moves of one bar, lower is better. Ranges: the share of closes inside, which should be what " +
  "their name says."
const COLUMNS = [
  ["Error", ({ crps_scaled: error }) => figure(error), "pinball"],
  ["50 % range", ({ coverage }) => share(coverage["0.5"])],
  ["80 % range", ({ coverage }) => share(coverage["0.8"]), "range"],
  ["90 % range", ({ coverage }) => share(coverage["0.9"])],
  ["Right direction", ({ direction_accuracy: right = null }) => share(right)],
]

/** A table of `rows` of `[name, values]`; a column is `[title, its text of the values, term of the glossary]`. */
export function comparison(title, caption, columns, rows) {
  const heads = columns.map(([name, , term]) => made("th", { scope: "col", ...(term ? { "data-term": term } : {}) }, name))
  const table = made("table", {},
    made("thead", {}, made("tr", {}, made("th", { scope: "col" }, "Forecast by"), ...heads)),
    made("tbody", {}, ...rows.map(([name, values]) => made("tr", {}, made("th", { scope: "row" }, name),
      ...columns.map(([, textOf]) => made("td", {}, textOf(values)))))))
  explainTerms(table)
  const scroll = made("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table)
  return made("div", { class: "outcome" }, scroll, made("p", { class: "help" }, caption))
}

/** The table of scores of `[name, scores]`. */
export function scoresTable(rows) {
  return comparison("Scores", CAPTION, COLUMNS, rows)
}
