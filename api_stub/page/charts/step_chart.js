/** A chart of lines over steps or bars, all of them in view. */
import { LineSeries, LineStyle, createOptionsChart } from "../vendor/lightweight-charts/lightweight-charts.js"
import { chartOptions, colour, followSize, withColours } from "./colours.js"
import { made, whole } from "../common/elements.js"
import { figure } from "../common/format.js"

/** The key of a chart's lines: `{text, colour, lineStyle}`, or `isDashed`. */
export function keyOf(lines) {
  return made("ul", { class: "key-of-chart" }, ...lines.map(({ text, colour: name, lineStyle, isDashed }) => {
    const kind = isDashed || lineStyle === LineStyle.Dashed ? "dashed" : ""
    const swatch = made("span", { class: `swatch swatch-line ${kind}`, "aria-hidden": "true" })
    swatch.style.setProperty("--colour", `var(--${name})`)
    return made("li", {}, swatch, ...whole(text))
  }))
}

const NUMBERS = { type: "custom", formatter: figure, minMove: 0.0001 }

export class StepChart {
  /** Adds itself to `parent`; `lines` are `{text, colour, ...options of the library}`; `axes` are the axes' names. */
  constructor(parent, title, lines, priceFormat = NUMBERS, axes = {}) {
    this.figure = made("div", { class: "chart loss", role: "img", ...axes })
    this.text = made("p", { class: "values help" })
    parent.append(made("div", { class: "drawn" }, made("h3", {}, title), keyOf(lines), this.figure, this.text))
    // The library treats the horizontal axis as prices; here it holds steps.
    this.chart = createOptionsChart(this.figure, {
      ...chartOptions(),
      localization: { precision: 0 },
      handleScroll: false, // all of it is visible, so a drag scrolls the page
      handleScale: false,
    })
    this.series = lines.map(({ text, colour: _, ...options }) => this.chart.addSeries(
      LineSeries, { priceLineVisible: false, lastValueVisible: false, lineWidth: 2, priceFormat, ...options }))
    this.fit = followSize(this.figure, this.chart, () => this.chart.timeScale().fitContent())
    withColours(() => {
      this.chart.applyOptions(chartOptions())
      this.series.forEach((one, index) => one.applyOptions({ color: colour(lines[index].colour) }))
    })
  }

  /** Shows a text below the chart, and all steps in it. */
  describe(text) {
    this.fit()
    this.chart.timeScale().fitContent()
    this.text.textContent = text
  }
}
