/** The choices of models and devices, by the live workers. */
import { byId, offer, showText } from "../common/elements.js"
import { isForecasting, isGpu, isReady } from "./pool.js"
import { deviceName } from "../common/texts.js"

const BUNDLED = "kronos-tiny" // every worker has it
const known = new Map()

/** Offers the fastest, the processor, any graphics card, and each one of the workers that pass `serves`. */
export function offerDevices(select, workers, serves) {
  const gpus = new Map()
  for (const worker of workers.filter((worker) => serves(worker) && isGpu(worker))) {
    const state = isReady(worker) ? "" : ", not ready"
    gpus.set(worker.device, `${deviceName(worker.device, worker.device_description)}${state}`)
  }
  const none = [...gpus.keys()].some((device) => device.startsWith("cuda")) ? "any" : "none is ready"
  const always = [["auto", "the fastest that is ready"], ["cpu", deviceName("cpu")], ["cuda", `graphics card: ${none}`]]
  const isGone = offer(select, [...always, ...[...gpus].sort()])
  showText(byId(`${select.id}-gone`), isGone && `${select.value} is no longer there. It stays chosen.`)
}

/** Offers the usable models to forecast with, to backtest and compare, and to start training from. */
export function offerModels(models) {
  for (const model of models) known.set(model.id, model)
  const usable = models.filter(({ damaged }) => !damaged)
  const names = usable.map(({ id }) => [id, id])
  const own = [...new Set(usable.filter(({ kind }) => kind === "own").map(({ id }) => id))]
  const standard = own.length ? `standard: ${own.join(" or ")}` : "the service's standard model"
  for (const list of ["model", "backtest-model"]) offer(byId(list), [["", standard], ...names])
  offer(byId("backtest-other"), [["", "no other model"], ...names])
  offer(byId("start"), [...new Set([BUNDLED, ...usable.map(({ id }) => id)])].map((id) => [id, id]))
}

/** What the service says of a model: `lookback`, `min_lookback` and `pred_len` of its training, if they are known. */
export const modelOf = (id) => known.get(id) ?? {}

/** The chosen model as the workers announce it, with `id`, `max_context` and `lookback`; null if none has it. */
export function chosenModel(workers, model, horizon) {
  const held = workers.filter(isForecasting).flatMap(({ models = [] }) => (model ? models : models.slice(0, 1)))
  const fitting = held.filter(({ id, max_context }) => max_context && (!model || id === model))
  return fitting.sort((one, other) => autoLookback(other, horizon) - autoLookback(one, horizon))[0] ?? null
}

/** The bars that a model reads by itself. */
export function autoLookback({ lookback, min_lookback, max_context }, horizon) {
  const isTied = lookback && (min_lookback ?? lookback) === lookback
  const room = Math.max(max_context - horizon, Math.floor(max_context / 2))
  return isTied ? lookback : Math.min(room, lookback ?? room)
}

/** What must be said of a model wherever it is named; null if nothing. */
export const caution = (id, revision = null) => (known.get(`${id}@${revision}`) ?? known.get(id))?.caution ?? null
