/** The losses of one stage of training, by step. */

import { StepChart } from "./step_chart.js"

export class LossChart {
  #steps = 0
  #validation = null

  /** Adds itself to the end of `parent`. */
  constructor(parent, stage) {
    this.stage = stage
    this.chart = new StepChart(parent, `Loss of the ${stage}`, [
      { text: "training loss", colour: "accent" },
      { text: "validation loss", colour: "mean", pointMarkersVisible: true },
    ])
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
    const parts = [`step ${step}${numSteps ? ` of ${numSteps}` : ""}`, `loss ${loss.toPrecision(4)}`]
    if (this.#validation !== null) parts.push(`validation ${this.#validation.toPrecision(4)}`)
    if (rate !== null) parts.push(`learning rate ${rate.toPrecision(2)}`)
    this.chart.describe(parts.join(" · "))
    this.chart.figure.setAttribute("aria-label", `Loss of the ${this.stage} by step: ${parts.join(" · ")}`)
  }
}
