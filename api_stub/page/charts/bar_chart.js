/** A chart of bars or intervals in groups, one of each forecaster, and a line where they should end. */
import { made } from "../common/elements.js"
import { figure, signed } from "../common/format.js"
import { keyOf } from "./step_chart.js"

const MAX_WRITTEN = 12 // bars with their values; more have no room

/** Where the mark of a value begins, what it says, and where it ends: a bar from 0, or an interval. */
function endsOf(value) {
  if (typeof value === "number") return [Math.min(value, 0), value, Math.max(value, 0)]
  const { difference, low, high } = value
  return [low ?? difference, difference, high ?? difference]
}

/**
 * Adds a chart to `parent`: `lines` are `{text, colour, values}`, with a value for each of `groups`, a number or the
 * `{difference, low, high, verdict}` of a comparison; `target` is the `{text, value}` of where bars should end;
 * `written` makes the text of a value; screen readers say `described`.
 */
export function barChart(parent, title, groups, lines, target, written, described) {
  const values = lines.flatMap(({ values: own }) => own)
  const ends = values.flatMap(endsOf)
  const [least, most] = [Math.min(0, ...ends), Math.max(target.value, ...ends)]
  const step = 10 ** Math.max(0, Math.floor(Math.log10(most - least || 1)))
  const [first, last] = [Math.floor(least / step), Math.max(1, Math.ceil(most / step))]
  const below = (value) => `${(100 * (value / step - first)) / (last - first)}%`
  const mark = (kind, colour, [begin, at, end], ...parts) => {
    const element = made("span", { class: kind }, ...parts)
    const given = { "--begin": below(begin), "--at": below(at), "--end": below(end), "--colour": `var(--${colour})` }
    for (const [name, of] of Object.entries(given)) element.style.setProperty(name, of)
    return element
  }
  const bar = (value, colour) => {
    const [begin, at, end] = endsOf(value)
    const kind = `bar${at < 0 ? " under" : ""}${value === at ? "" : ` interval ${value.verdict}`}`
    return mark(kind, colour, [begin, at, end], made("span", {}, values.length > MAX_WRITTEN ? "" : written(value)))
  }
  const group = (name, place) => made("div", { class: "group" },
    ...lines.map(({ values: own, colour }) => bar(own[place], colour)), made("span", { class: "name" }, name))
  const ticks = Array.from({ length: last - first + 1 }, (_, place) => step * (first + place))
  const isDifference = typeof values[0] === "object" // from the target, above which is better
  const plot = made("div", { class: isDifference ? "bars differences" : "bars", role: "img", "aria-label": described },
    ...ticks.map((tick) => mark("tick", "grid", [tick, tick, tick], isDifference && tick ? signed(tick) : figure(tick).replace("-", "−"))),
    mark("target", "soft", Array(3).fill(target.value)), ...groups.map(group))
  plot.style.setProperty("--at", below(target.value))
  const key = keyOf([...lines, { text: target.text, colour: "soft", isDashed: true }])
  parent.append(made("div", { class: "drawn" }, made("h3", {}, title), key, plot))
}
