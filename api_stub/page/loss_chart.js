/** The losses of one stage of training, by step. */

import { LineSeries, createOptionsChart } from "./vendor/lightweight-charts/lightweight-charts.js"
import { chartOptions, colour, withColours } from "./colours.js"
import { made } from "./elements.js"

const LINE = {
  priceLineVisible: false, lineWidth: 2, priceFormat: { type: "price", precision: 4, minMove: 0.0001 },
}

export class LossChart {
  #steps = 0
  #validation = null

  /** Adds itself to the end of `parent`. */
  constructor(parent, stage) {
    this.stage = stage
    this.figure = made("div", { class: "chart loss", role: "img" })
    const key = made("ul", { class: "key-of-chart" })
    for (const [swatch, text] of [["loss", "training loss"], ["validation", "validation loss"]]) {
      key.append(made("li", {}, made("span", { class: `swatch swatch-${swatch}`, "aria-hidden": "true" }), text))
    }
    this.text = made("p", { class: "values" })
    parent.append(made("h3", {}, `Loss of the ${stage}`), this.figure, key, this.text)
    // The library treats the horizontal axis as prices; here it holds steps.
    this.chart = createOptionsChart(this.figure, {
      ...chartOptions(),
      autoSize: true,
      localization: { precision: 0 },
      handleScroll: false, // all of it is visible, so a drag scrolls the page
      handleScale: false,
    })
    this.loss = this.chart.addSeries(LineSeries, LINE)
    this.validation = this.chart.addSeries(LineSeries, { ...LINE, pointMarkersVisible: true })
    withColours(() => {
      this.chart.applyOptions(chartOptions())
      this.loss.applyOptions({ color: colour("accent") })
      this.validation.applyOptions({ color: colour("mean") })
    })
  }

  /** Adds a progress report, unless its step is drawn already. */
  add({ step, num_steps: numSteps, loss, validation_loss: validation, learning_rate: rate }) {
    if (step === null || loss === null || step <= this.#steps) return
    this.#steps = step
    this.loss.update({ time: step, value: loss })
    if (validation !== null && validation !== this.#validation) {
      this.#validation = validation
      this.validation.update({ time: step, value: validation })
    }
    this.chart.timeScale().fitContent()
    const parts = [`step ${step}${numSteps ? ` of ${numSteps}` : ""}`, `loss ${loss.toPrecision(4)}`]
    if (this.#validation !== null) parts.push(`validation ${this.#validation.toPrecision(4)}`)
    if (rate !== null) parts.push(`learning rate ${rate.toPrecision(2)}`)
    this.text.textContent = parts.join(" · ")
    this.figure.setAttribute("aria-label", `Loss of the ${this.stage} by step: ${this.text.textContent}`)
  }
}
