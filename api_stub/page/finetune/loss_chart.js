/** The losses of one stage of training, by step. */

import { count, figure } from "../common/format.js"
import { StepChart } from "../charts/step_chart.js"

export class LossChart {
  #steps = 0
  #validation = null

  /** Adds itself to the end of `parent`. */
  constructor(parent, stage) {
    this.title = stage === "tokenizer" ? "Loss of the tokenizer" : "Loss of the model"
    this.chart = new StepChart(parent, this.title, [
      { text: "on what it learns from", colour: "accent" },
      { text: "on bars that it does not learn from", colour: "second", pointMarkersVisible: true },
    ], undefined, { "data-x": "step", "data-y": "loss" })
  }

  /** Adds a progress report, unless its step is drawn already. */
  add({ step, num_steps: numSteps, loss, validation_loss: validation, learning_rate: rate }) {
    if (step === null || loss === null || step <= this.#steps) return
    this.#steps = step
    const [losses, validations] = this.chart.series
    losses.update({ time: step, value: loss })
    if (validation !== null && validation !== this.#validation) {
      this.#validation = validation
      validations.update({ time: step, value: validation })
    }
    const parts = [`step ${count(step)}${numSteps ? ` of ${count(numSteps)}` : ""}`, `loss ${figure(loss)}`]
    if (this.#validation !== null) parts.push(`on other bars ${figure(this.#validation)}`)
    if (rate !== null) parts.push(`learning rate ${figure(rate)}`)
    this.chart.describe(parts.join(" · "))
    this.chart.figure.setAttribute("aria-label", `${this.title} by step: ${parts.join(" · ")}`)
  }
}
