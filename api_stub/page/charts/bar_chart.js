/** A chart of bars in groups, a bar of each forecaster, and a line where they should end. */

import { made } from "../common/elements.js"
import { keyOf } from "./step_chart.js"

const MAX_WRITTEN = 24 // bars with their values; more have no room

/**
 * Adds a chart to the end of `parent`: `lines` are `{text, colour, values}` of each forecaster, with a value for each of `groups`;
 * `target` is the `{text, value}` of where bars should end; `written` makes the text of a value; screen readers say `described`.
 */
export function barChart(parent, title, groups, lines, target, written, described) {
  const values = lines.flatMap(({ values: own }) => own)
  const [low, high] = [1.3 * Math.min(0, ...values), 1.2 * Math.max(target.value, ...values)]
  const below = (value) => `${(100 * (value - low)) / (high - low || 1)}%`
  const bar = (value, colour) => {
    const text = made("span", {}, values.length > MAX_WRITTEN ? "" : written(value))
    const element = made("span", { class: value < 0 ? "bar under" : "bar" }, text)
    const given = { "--end": below(Math.max(value, 0)), "--begin": below(Math.min(value, 0)), "--colour": `var(--${colour})` }
    for (const [name, of] of Object.entries(given)) element.style.setProperty(name, of)
    return element
  }
  const line = made("span", { class: "target" })
  line.style.setProperty("--end", below(target.value))
  const plot = made("div", { class: "bars", role: "img", "aria-label": described }, line, ...groups.map((group, place) => (
    made("div", { class: "group" }, ...lines.map(({ values: own, colour }) => bar(own[place], colour)), made("span", { class: "name" }, group)))))
  parent.append(made("div", { class: "drawn" }, made("h3", {}, title), keyOf([...lines, { text: target.text, colour: "soft" }]), plot))
}
