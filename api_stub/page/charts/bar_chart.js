/** Groups of bars, one bar for each forecaster, with a line at the value that they should have. */

import { made } from "../common/elements.js"
import { share } from "../common/format.js"

/**
 * Adds itself to the end of `parent`, and returns its figure.
 *
 * @param labels The text of each group.
 * @param lines `{text, colour, values, texts}` of each forecaster: shares by group, and the texts at its bars, if any.
 * @param target `{value, text}`: the share that each bar should reach, and what the key calls it.
 */
export function barChart(parent, title, labels, lines, target) {
  const all = [0, target.value, ...lines.flatMap(({ values }) => values.filter(Number.isFinite))]
  const [least, most] = [Math.min(...all) - 0.01, Math.max(...all) + 0.01]
  const step = most - least > 0.35 ? 0.1 : 0.05
  const low = least < -0.01 ? step * Math.floor(least / step) : 0
  const high = step * Math.ceil(most / step)
  const place = (value) => `${(100 * (value - low)) / (high - low)}%`

  const ticks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, index) => {
    const value = low + index * step
    const isTarget = Math.abs(value - target.value) < step / 2
    const tick = made("span", { class: isTarget ? "tick target" : "tick" }, share(Math.abs(value) < 1e-9 ? 0 : value))
    tick.style.bottom = place(value)
    return tick
  })
  const groups = labels.map((label, index) => made("div", { class: "group" }, ...lines.map(({ colour, values, texts }) => {
    const value = Number.isFinite(values[index]) ? values[index] : 0
    const bar = made("span", { class: value < 0 ? "bar below" : "bar" }, ...(texts ? [made("span", {}, texts[index])] : []))
    bar.style.cssText = `bottom: ${place(Math.min(0, value))}; height: calc(${place(low + Math.abs(value))}); background: var(--${colour})`
    return made("div", { class: "slot" }, bar)
  }), made("span", { class: "label" }, label)))
  const figure = made("div", { class: "chart loss bars", role: "img" }, made("div", { class: "plot" }, ...ticks, ...groups))
  parent.append(made("h3", {}, title), figure, keyOf([...lines, { text: target.text, colour: "soft" }]))
  return figure
}

/** The key of a chart, from the `{text, colour}` of its lines. */
export function keyOf(lines) {
  return made("ul", { class: "key-of-chart" }, ...lines.map(({ text, colour }) => {
    const swatch = made("span", { class: "swatch swatch-line", "aria-hidden": "true" })
    swatch.style.background = `var(--${colour})`
    return made("li", {}, swatch, text)
  }))
}
