/** The fields of a forecast: what they ask for, and the limits that the models and the service set. */
import { HIGHER } from "./answer.js"
import { Candles, idOf } from "./candle_file.js"
import { autoLookback, caution, chosenModel } from "../service/choices.js"
import { byId, limit, made, numberIn, showText } from "../common/elements.js"
import { bars, count, lengthOf, timesOf } from "../common/format.js"

const SAMPLES = 100 // as all clients
const WIDE = [0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975]
const QUANTILES = WIDE.slice(1, -1) // of a calibrated forecast, and of few paths
const WIDE_PATHS = 39 // fewer do not reach out to the widest levels
const SMALL = 20_000 // up to this many values per column, paths are requested even if they are not shown
const MAX_HORIZON = 2048 // of the longest published context, if no worker announces the model
const LIMITS = { max_bars: 8192, max_sample_count: 256, max_paths: 4096 } // until the service has sent its own

export class ForecastForm {
  #workers = []
  #limits = LIMITS
  #candles = null

  constructor() {
    byId("zones").replaceChildren(...Intl.supportedValuesOf("timeZone").map((value) => made("option", { value })))
    byId("change").addEventListener("click", () => this.fold(byId("change").ariaExpanded === "true"))
    for (const id of ["horizon", "lookback", "model", "calibrated"]) byId(id).addEventListener("input", () => this.explain())
    this.explain()
  }

  fold(isFolded) {
    byId("forecast-form").classList.toggle("folded", isFolded)
    byId("change").ariaExpanded = String(!isFolded)
  }

  /** A file has been opened. */
  onCandles(candles) {
    this.#candles = candles
    this.fold(false)
    byId("run").disabled = byId("run").hidden = false
    byId("run-sample").hidden = true
    this.explain()
  }

  /** The workers and limits have been read. */
  onPool({ workers, limits }) {
    this.#workers = workers
    this.#limits = { ...LIMITS, ...limits }
    this.explain()
  }

  /** The known bars and the held-out bars of a file, as the form divides them. */
  cut(candles) {
    const heldOut = Math.min(numberIn("held-out") ?? 0, candles.length - 1)
    const end = candles.length - heldOut
    const lookback = numberIn("lookback") ?? this.#autoLookback ?? this.#limits.max_bars
    const { name, timestamps, columns, timezone } = candles
    const zoned = new Candles(name, timestamps, columns, byId("timezone").value || timezone)
    return { lookback: zoned.slice(Math.max(0, end - lookback), end), actual: zoned.slice(end) }
  }

  jobOf({ lookback, actual }) {
    const { name, timestamps, timezone, columns } = lookback
    const series = { id: idOf(name), timestamps, timezone, ...columns }
    const horizon = numberIn("horizon")
    if (actual.length >= horizon) series.future_timestamps = actual.timestamps.slice(0, horizon)
    // Chosen here, because JavaScript numbers cannot hold every seed that a worker may choose.
    const seed = numberIn("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0]
    return {
      schema_version: 1,
      series: [series],
      pred_len: horizon,
      lookback: numberIn("lookback") ?? "auto",
      sampling: { temperature: numberIn("temperature"), top_p: numberIn("top-p"), sample_count: numberIn("samples"), seed },
      output: {
        quantiles: this.#isCalibrated || numberIn("samples") < WIDE_PATHS ? QUANTILES : WIDE,
        paths: byId("paths").checked || horizon * numberIn("samples") <= SMALL, stream: true,
        events: [HIGHER, ...byId("events").value.split(",").map((text) => text.trim()).filter(Boolean)],
        statistics: true, calibrated: this.#isCalibrated,
      },
      model: byId("model").value || null,
      device: byId("device").value,
      allow_fallback: byId("fallback").checked,
    }
  }

  get #model() { return chosenModel(this.#workers, byId("model").value, numberIn("horizon") ?? 0) }
  get #isCalibrated() { return !byId("calibration").hidden && byId("calibrated").checked }

  get #autoLookback() {
    const model = this.#model
    if (this.#isCalibrated) return model.calibration.lookback
    return model && autoLookback(model, numberIn("horizon") ?? 0)
  }

  /** Limits the fields, and says why, in the chosen model's own numbers. */
  explain() {
    const { max_bars: maxBars, max_sample_count: perSeries, max_paths: perJob } = this.#limits
    const model = this.#model
    const calibration = model?.calibration
    const horizon = numberIn("horizon") ?? 0
    byId("asked-what").textContent = `${bars(horizon)} · ${byId("model").value || model?.id || "standard model"}`
    if (this.#candles) byId("run").replaceChildren("Forecast", made("span", {}, ` ${lengthOf(horizon, this.#candles.timestamps)}`))
    byId("calibration").hidden = !calibration
    const day = calibration?.last.slice(0, 10)
    showText(byId("calibration-note"), calibration && `Learned from ${count(calibration.num_windows)} earlier forecasts, ` +
      `the last on ${timesOf([day])(day)}. It reads ${bars(calibration.lookback)}, and holds for ` +
      `${bars(calibration.horizon)} ahead.`)
    byId("lookback").placeholder = this.#autoLookback ? count(this.#autoLookback) : "auto"
    limit("horizon", model?.max_context ?? MAX_HORIZON, `as far as ${model?.id ?? "any published model"} can look`)
    limit("lookback", maxBars, "the service's limit for one forecast")
    limit("samples", Math.min(perSeries, perJob), "the service's limit for one forecast")
    byId("samples").defaultValue = Math.min(SAMPLES, byId("samples").max) // what the user has typed stays
    showText(byId("model-note"), caution(byId("model").value || model?.id))
    showText(byId("limits-note"), model && limitsOf(model, numberIn("lookback"), numberIn("horizon") ?? 0))
  }
}

function limitsOf({ id, lookback, min_lookback: shortest, max_context: context }, asked, horizon) {
  const range = shortest && shortest !== lookback ? `${count(shortest)} to ` : ""
  const trained = lookback ? ` learned to read ${range}${bars(lookback)}, and` : ""
  const own = `${id}${trained} has room for ${bars(context)}, those it reads and those ahead together.`
  const read = asked ?? autoLookback({ lookback, min_lookback: shortest, max_context: context }, horizon)
  if (read > context) return `${own} Of your ${count(read)} bars it reads the newest ${count(context)}.`
  if (read + horizon <= context) return own
  return `${own} From bar ${count(context - read + 1)} ahead on, the forecast gets slow.`
}
