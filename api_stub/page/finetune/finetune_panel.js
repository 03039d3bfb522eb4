/** The finetuning section: an upload, a form, a training job, its losses. */
import { Unreachable, upload } from "../service/api.js"
import { modelOf } from "../service/choices.js"
import { badField, byId, made, numberIn, said, showText, whole } from "../common/elements.js"
import { bars, count, duration, figure, timeLeft } from "../common/format.js"
import { StepChart } from "../charts/step_chart.js"
import { SectionJob } from "../jobs/section_job.js"
import { Reading } from "../common/reading.js"
import { Settings, showChanged } from "../common/settings.js"
import { deviceName, inWords, reason } from "../common/texts.js"
import { drawAgainstBaseline, scoresTable, verdictLines } from "../common/scores.js"
import { promotion } from "../service/promotion.js"

export class FinetunePanel {
  #charts = new Map()
  reading = new Reading("dataset-")

  /** Calls `onModel` with the id of each trained model. */
  constructor(pool, recent, datasets, onModel) {
    Object.assign(this, { datasets, onModel })
    this.job = new SectionJob("finetunes", "train", "training", pool, recent, {
      check: (form) => datasets.whyNone ?? (byId("dataset").value ? badField(form) : "Upload a file of candles first."),
      submit: () => {
        const job = this.#jobOf()
        this.job.send(job, `Training of ${job.name} on ${job.data.path}`)
      },
      forget: () => this.#forget(),
      describe: (...now) => this.#describe(...now),
      show: (result) => this.#report(result),
    })
    this.settings = new Settings("finetune", () => {
      this.onModels()
      showChanged("finetune-advanced", "dataset-file-form")
    })
    for (const id of ["start", "train-lookback", "train-horizon"]) byId(id).addEventListener("input", () => this.onModels())
    byId("dataset-file").addEventListener("change", () => this.#upload(byId("dataset-file").files[0]))
    byId("finetune").addEventListener("drop", ({ dataTransfer: { files } }) => this.#upload(files[0]))
  }

  /** What a window has: as the user says, else as in the training of the model to start from, else undefined. */
  get #window() {
    const { lookback, min_lookback: shortest, pred_len } = modelOf(byId("start").value)
    const longest = numberIn("train-lookback") ?? lookback
    const least = Math.min(shortest ?? Math.max(2, Math.ceil(longest / 4)), longest)
    return { lookback: longest, shortest: least, horizon: numberIn("train-horizon") ?? pred_len }
  }

  /** Proposes what the model to start from was trained with. */
  onModels() {
    const { lookback: own, min_lookback: shortest, pred_len: ahead } = modelOf(byId("start").value)
    byId("train-lookback").placeholder = own ? count(own) : "auto"
    byId("train-horizon").placeholder = ahead ? count(ahead) : "auto"
    const { lookback, horizon } = this.#window
    const range = shortest && shortest !== own ? `${count(shortest)} to ` : ""
    const parts = []
    if (own) parts.push(`It learned to read ${range}${bars(own)}${ahead ? `, and to look ${bars(ahead)} ahead` : ""}.`)
    // A window must fit into the first 80 % of a file's bars, and its horizon into the 10 % after them.
    const fewest = Math.max(Math.ceil((lookback + horizon) / 0.8), 10 * horizon)
    if (lookback && horizon) parts.push(`Your file needs at least about ${bars(fewest)}.`)
    showText(byId("start-note"), parts.join(" "))
  }

  async #upload(file) {
    if (!file || this.datasets.whyNone) return
    const [state, problem] = [byId("dataset-state"), byId("dataset-problem")]
    showText(problem, null)
    state.textContent = `Uploading ${file.name}…`
    const name = file.name.replace(/[^A-Za-z0-9._-]/g, "-").replace(/^[^A-Za-z0-9]+/, "")
    try {
      const dataset = await upload(`datasets?${this.reading.query({ name, replace: byId("dataset-replace").checked })}`, file)
      const left = Object.values(dataset.dropped).reduce((sum, number) => sum + number, 0)
      state.textContent = `${dataset.name} is uploaded: ${bars(dataset.num_bars)}` +
        (dataset.num_instruments > 1 ? ` of ${count(dataset.num_instruments)} instruments.` : ".") +
        (left ? ` Rows left out: ${count(left)}.` : "")
      this.datasets.add(dataset.name)
      byId("dataset").value = dataset.name
    } catch (error) {
      state.textContent = ""
      const known = error.code === "DATASET_EXISTS"
        ? `${name} exists already: rename the file, or tick "Replace a file of the same name" and upload it again.`
        : reason(error)
      this.reading.onRefusal(error)
      showText(problem, known, error instanceof Unreachable ? () => this.#upload(file) : null)
    }
    byId("dataset-file").value = ""
  }

  #jobOf() {
    const tokenizerEpochs = numberIn("tokenizer-epochs")
    const { lookback, shortest, horizon } = this.#window
    const data = this.reading.options // what is not known is left out: then the service has defaults
    if (lookback) data.lookback = { min: shortest, max: lookback }
    if (horizon) data.pred_len = horizon
    const config = {
      data,
      start: { model: byId("start").value },
      stages: tokenizerEpochs ? ["tokenizer", "predictor"] : ["predictor"],
      predictor: { epochs: numberIn("epochs"), optimiser: { learning_rate: numberIn("learning-rate") } },
    }
    if (tokenizerEpochs) config.tokenizer = { epochs: tokenizerEpochs }
    const [name, path, device] = ["finetune-name", "dataset", "finetune-device"].map((id) => byId(id).value)
    return { schema_version: 1, name, config, data: { path }, device }
  }

  #forget() {
    showText(byId("training-warning"), null)
    byId("trained").hidden = true
    byId("losses").replaceChildren()
    this.#charts.clear()
  }

  #describe(now, place, isSilent) {
    const gone = "The worker that trained this is gone. Another worker will go on from its last save."
    if (isSilent) return { text: gone, share: null }
    const { progress } = now
    if (!progress?.stage) return { text: said("reading"), share: null }
    const { stage, step, num_steps: steps, epoch, num_epochs: epochs, seconds_left: left, device } = progress
    this.#draw(progress)
    const parts = [said(stage) ?? said("predictor")]
    if (epoch !== null) parts.push(`pass ${count(epoch)} of ${count(epochs)}`)
    if (device) parts.push(`on the ${deviceName(device)}`)
    return { text: parts.join(", "), share: steps ? (step ?? 0) / steps : null, rest: timeLeft(left) }
  }

  #draw(progress) {
    if (progress.loss === null) return
    if (!this.#charts.has(progress.stage)) this.#charts.set(progress.stage, new LossChart(byId("losses"), progress.stage))
    this.#charts.get(progress.stage).add(progress)
  }

  #report({ model, parent, evaluation, device, device_warning: warning, warnings, verdict, timings_ms: timings }) {
    showText(byId("training-warning"), [...new Set([warning, ...warnings].filter(Boolean).map(inWords))].join(" "))
    const took = duration(timings.training / 1000)
    const onclick = () => this.onModel(model.id)
    const use = made("button", { type: "button", class: "primary", onclick }, "Forecast with it")
    byId("trained").replaceChildren(
      made("div", { class: "notice" },
        made("p", {}, made("strong", {}, ...whole(model.id)), ` was trained on the ${deviceName(device)} in ${took}.`),
        ...verdictLines(verdict), made("div", { class: "row" }, use, promotion(model.id))),
    )
    if (evaluation?.models) this.#compare(model.id, parent.model, evaluation)
    byId("trained").hidden = false
    this.onModel(model.id, false)
  }

  /** Compares the trained model with the one it started from, and with simple forecasts. */
  #compare(trained, start, { models: { finetuned, start: before }, naive, num_windows: windows, lookback, horizon }) {
    const models = { [trained]: finetuned, ...(before ? { [`${start}, before training`]: before } : {}) }
    drawAgainstBaseline(byId("trained"), models)
    byId("trained").append(scoresTable(models, naive, `On ${count(windows)} moments that training has not seen: ` +
      `${bars(lookback)} read, ${count(horizon)} forecast. `))
  }
}

/** The losses of one stage of training, by step. */
class LossChart {
  #steps = 0
  #validation = null

  /** Adds itself to the end of `parent`. */
  constructor(parent, stage) {
    this.title = `How the ${stage === "tokenizer" ? "tokenizer" : "model"} learns (loss, lower is better)`
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
