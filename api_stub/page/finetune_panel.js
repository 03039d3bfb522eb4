/** The finetuning section: an upload, a form, a training job, its losses. */

import { ApiError, Unreachable, get, newRepeatKey, post, upload } from "./api.js"
import { badField, byId, made, numberIn, offer, showText } from "./elements.js"
import { JobLine } from "./job_line.js"
import { LossChart } from "./loss_chart.js"
import { isForecasting, isReady } from "./pool.js"
import { Silence } from "./silence.js"
import { bars, count, duration, reason } from "./texts.js"

export class FinetunePanel {
  #hasDatasets = false
  #datasets = []
  #uploaded = new Set()
  #jobId = null
  #silence = new Silence()
  #charts = new Map()

  /** Calls `onModel` with the id of each trained model. */
  constructor(pool, recent, onModel) {
    this.pool = pool
    this.recent = recent
    this.onModel = onModel
    this.job = new JobLine({
      box: "training", state: "training-state", progress: "training-progress", share: "training-share",
      cancel: "stop-training", problem: "training-problem",
    }, recent)
    pool.onChange((state) => {
      if (state) this.#silence.onWorkers(state.workers.some(({ training }) => training?.job_id === this.#jobId))
      this.job.refresh()
      if (state) this.#readDatasets()
    })
    byId("dataset-file").addEventListener("change", () => this.#upload(byId("dataset-file").files[0]))
    byId("finetune").addEventListener("drop", ({ dataTransfer: { files } }) => this.#upload(files[0]))
    byId("finetune-form").addEventListener("submit", (event) => this.#submit(event))
  }

  /** Reads the list of files once. After a failure it is read again with the next update of the pool. */
  async #readDatasets() {
    if (this.#hasDatasets) return
    this.#hasDatasets = true
    try {
      const { datasets } = await get("datasets")
      this.#datasets = datasets.map(({ name }) => name)
      this.#offerDatasets()
      showText(byId("datasets-problem"), null)
    } catch (error) {
      this.#hasDatasets = error.status >= 400 && error.status < 500 && error.status !== 429
      showText(byId("datasets-problem"), reason(error))
    }
  }

  /** Offers the listed files and those uploaded here, which an earlier list lacks. */
  #offerDatasets() {
    offer(byId("dataset"), [...new Set([...this.#datasets, ...this.#uploaded])].map((name) => [name, name]))
  }

  async #upload(file) {
    if (!file) return
    const [state, problem] = [byId("dataset-state"), byId("dataset-problem")]
    showText(problem, null)
    state.textContent = `Uploading ${file.name}…`
    const name = file.name.replace(/[^A-Za-z0-9._-]/g, "-").replace(/^[^A-Za-z0-9]+/, "")
    const [replace, drop] = ["dataset-replace", "dataset-drop"].map((id) => byId(id).checked)
    const address = `datasets?${new URLSearchParams({ name, replace, drop_bad_rows: drop })}`
    try {
      const dataset = await upload(address, file)
      const left = Object.values(dataset.dropped).reduce((sum, number) => sum + number, 0)
      state.textContent = `${dataset.name} is uploaded: ${bars(dataset.num_bars)}` +
        (dataset.num_instruments > 1 ? ` of ${dataset.num_instruments} instruments.` : ".") +
        (left ? ` Rows left out: ${count(left)}.` : "")
      this.#uploaded.add(dataset.name)
      this.#offerDatasets()
      byId("dataset").value = dataset.name
    } catch (error) {
      state.textContent = ""
      const known = error.code === "DATASET_EXISTS"
        ? `${name} exists already: rename the file, or tick "Replace a file of the same name" and upload it again.`
        : reason(error)
      showText(problem, known, error instanceof Unreachable ? () => this.#upload(file) : null)
    }
    byId("dataset-file").value = ""
  }

  #jobOf() {
    const tokenizerEpochs = numberIn("tokenizer-epochs")
    const rate = { learning_rate: numberIn("learning-rate") }
    const longest = numberIn("train-lookback")
    const config = {
      data: {
        lookback: { min: Math.max(2, Math.ceil(longest / 4)), max: longest },
        pred_len: numberIn("train-horizon"),
        drop_bad_rows: byId("dataset-drop").checked,
      },
      start: { model: byId("start").value },
      stages: tokenizerEpochs ? ["tokenizer", "predictor"] : ["predictor"],
      predictor: { epochs: numberIn("epochs"), optimiser: rate },
    }
    if (tokenizerEpochs) config.tokenizer = { epochs: tokenizerEpochs }
    return {
      schema_version: 1,
      name: byId("finetune-name").value,
      config,
      data: { path: byId("dataset").value },
      device: byId("finetune-device").value,
    }
  }

  async #submit(event) {
    event.preventDefault()
    if (this.#isTraining) return
    for (const id of ["finetune-form-problem", "training-problem", "training-warning"]) showText(byId(id), null)
    const bad = byId("dataset").value ? badField(byId("finetune-form")) : "Upload a file of candles first."
    if (bad) {
      showText(byId("finetune-form-problem"), bad)
      return
    }
    await this.#send(this.#jobOf(), newRepeatKey())
  }

  /** Sends a job and follows it. If no answer comes, the same job can be sent again: it is trained once. */
  async #send(job, repeatKey) {
    byId("trained").hidden = true
    showText(byId("training-problem"), null)
    this.#isTraining = true
    this.job.leave()
    this.job.announce("Sending the job")
    try {
      const { id, queue } = await post("finetunes", job, repeatKey)
      this.recent.add(`finetunes/${id}`, `Training of ${job.name} on ${job.data.path}`)
      history.pushState(null, "", `#finetunes/${id}`)
      this.pool.refresh()
      await this.#follow(id, queue)
    } catch (error) {
      this.job.leave()
      showText(byId("training-problem"), reason(error),
        error instanceof Unreachable ? () => this.#send(job, repeatKey) : null)
    } finally {
      this.#isTraining = this.#jobId !== null // another job may be followed now
    }
  }

  /** Shows a job by its id: its losses while it runs, and then its result. */
  async openJob(id) {
    if (id === this.#jobId) return
    byId("trained").hidden = true
    for (const name of ["training-problem", "training-warning"]) showText(byId(name), null)
    this.#isTraining = true
    try {
      await this.#follow(id, null)
    } catch (error) {
      if (error instanceof ApiError) this.recent.onRefusal(`finetunes/${id}`, error)
      showText(byId("training-problem"), reason(error), error.status === 401 ? () => this.openJob(id) : null)
    } finally {
      this.#isTraining = this.#jobId !== null
    }
    byId("finetune").scrollIntoView()
  }

  async #follow(id, queue) {
    this.#jobId = id
    byId("losses").replaceChildren()
    this.#charts.clear()
    try {
      const result = await this.job.follow(`finetunes/${id}`, (state) => this.#describe(state, queue))
      if (result) this.#report(result)
    } finally {
      if (this.#jobId === id) this.#jobId = null
    }
  }

  get #isTraining() {
    return byId("train").ariaDisabled === "true"
  }

  set #isTraining(value) {
    byId("train").ariaDisabled = String(value)
  }

  #describe({ state, progress }, queue) {
    this.#silence.onJob([this.#jobId, state, progress])
    if (state !== "running") {
      const serving = this.pool.last?.workers.some((worker) => !isForecasting(worker) && isReady(worker))
      const where = queue ? ` in the queue ${queue}` : ""
      const text = serving || !this.pool.last ? `Waiting${where}`
        : `No worker for finetuning is ready. The job waits${where} until one is.`
      return { text, share: null }
    }
    if (this.#silence.isLong) {
      const text = "The worker that trained this is gone. Another worker will go on from its last save."
      return { text, share: null }
    }
    if (!progress?.stage) return { text: "Reading the candles", share: null }
    const { stage, step, num_steps: steps, epoch, num_epochs: epochs, seconds_left: left, device } = progress
    this.#draw(progress)
    const parts = [stage === "evaluation" ? "Evaluating on the held-out end" : `Training the ${stage}`]
    if (epoch !== null) parts.push(`epoch ${epoch} of ${epochs}`)
    if (device) parts.push(`on ${device}`)
    if (left !== null) parts.push(`about ${duration(left)} left`)
    return { text: parts.join(", "), share: steps ? (step ?? 0) / steps : null }
  }

  #draw(progress) {
    if (progress.loss === null) return
    if (!this.#charts.has(progress.stage)) {
      this.#charts.set(progress.stage, new LossChart(byId("losses"), progress.stage))
    }
    this.#charts.get(progress.stage).add(progress)
  }

  #report({ model, device, device_warning: warning, warnings, verdict, timings_ms: timings }) {
    showText(byId("training-warning"), [...new Set([warning, ...warnings].filter(Boolean))].join(" "))
    const use = made("button", { type: "button" }, "Forecast with it")
    use.addEventListener("click", () => this.onModel(model.id))
    byId("trained").replaceChildren(
      made("p", {}, made("strong", {}, model.id), ` was trained on ${device} in ${duration(timings.training / 1000)}.`),
      ...verdict.map((line) => made("p", { class: kindOf(line) }, line)),
      made("div", { class: "row" }, use),
    )
    byId("trained").hidden = false
    this.onModel(model.id, false)
  }
}

/** Whether a sentence of the verdict is good or bad news, as a class of the style sheet. */
function kindOf(sentence) {
  if (/no clear difference|too few|perhaps/.test(sentence)) return ""
  if (/WORSE|% worse than|too (narrow|wide)/.test(sentence)) return "bad"
  return /^Better|% better than/.test(sentence) ? "good" : ""
}
