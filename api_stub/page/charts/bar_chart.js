/** A chart of bars in groups, a bar of each forecaster, and a line where they should end. */

import { made } from "../common/elements.js"
import { figure } from "../common/format.js"
import { LineStyle } from "../vendor/lightweight-charts/lightweight-charts.js"
import { keyOf } from "./step_chart.js"

const MAX_WRITTEN = 12 // bars with their values; more have no room

/**
 * Adds a chart to the end of `parent`: `lines` are `{text, colour, values}` of each forecaster, with a value for each of `groups`;
 * `target` is the `{text, value}` of where bars should end; `written` makes the text of a value; screen readers say `described`.
 */
export function barChart(parent, title, groups, lines, target, written, described) {
  const values = lines.flatMap(({ values: own }) => own)
  const [least, most] = [Math.min(0, ...values), Math.max(target.value, ...values)]
  const step = 10 ** Math.max(0, Math.floor(Math.log10(most - least || 1)))
  const [first, last] = [Math.floor(least / step), Math.max(1, Math.ceil(most / step))]
  const below = (value) => `${(100 * (value / step - first)) / (last - first)}%`
  const mark = (kind, value, colour, ...parts) => {
    const element = made("span", { class: kind }, ...parts)
    const given = { "--end": below(Math.max(value, 0)), "--begin": below(Math.min(value, 0)), "--at": below(value), "--colour": `var(--${colour})` }
    for (const [name, of] of Object.entries(given)) element.style.setProperty(name, of)
    return element
  }
  const bar = (value, colour) => mark(value < 0 ? "bar under" : "bar", value, colour, made("span", {}, values.length > MAX_WRITTEN ? "" : written(value)))
  const ticks = Array.from({ length: last - first + 1 }, (_, place) => step * (first + place))
  const plot = made("div", { class: "bars", role: "img", "aria-label": described },
    ...ticks.map((tick) => mark("tick", tick, "grid", figure(tick).replace("-", "−"))), mark("target", target.value, "soft"), ...groups.map((group, place) => (
      made("div", { class: "group" }, ...lines.map(({ values: own, colour }) => bar(own[place], colour)), made("span", { class: "name" }, group)))))
  parent.append(made("div", { class: "drawn" }, made("h3", {}, title), keyOf([...lines, { text: target.text, colour: "soft", lineStyle: LineStyle.Dashed }]), plot))
}
