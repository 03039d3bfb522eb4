/** The choices of models and devices, by the live workers. */

import { byId, offer, showText } from "./elements.js"
import { isForecasting, isGpu, isReady } from "./pool.js"

const BUNDLED = "kronos-tiny" // every worker has it
const cautions = new Map()

/** Offers auto, cpu, cuda, and each GPU of the workers that pass `serves`. */
export function offerDevices(select, workers, serves) {
  const gpus = new Map()
  for (const worker of workers.filter((worker) => serves(worker) && isGpu(worker))) {
    const name = worker.device_description?.name
    const state = isReady(worker) ? "" : `, ${worker.state}`
    gpus.set(worker.device, `${worker.device}${name ? `: ${name}` : ""}${state}`)
  }
  const none = [...gpus.keys()].some((device) => device.startsWith("cuda")) ? "any" : "none is ready now"
  const isGone = offer(select, [
    ["auto", "auto: a GPU if one is ready"],
    ["cpu", "cpu"],
    ["cuda", `cuda: ${none}`],
    ...[...gpus].sort(),
  ])
  showText(byId(`${select.id}-gone`), isGone && `No worker has ${select.value} any more. It stays chosen.`)
}

/** Offers the usable models to forecast with, to backtest and compare, and to start training from. */
export function offerModels(models) {
  for (const { id, caution: text } of models) cautions.set(id, text)
  const ids = models.filter(({ damaged }) => !damaged).map(({ id }) => id)
  const names = ids.map((id) => [id, id])
  for (const list of ["model", "backtest-model"]) offer(byId(list), [["", "the worker's own"], ...names])
  offer(byId("backtest-other"), [["", "none"], ...names])
  offer(byId("start"), [...new Set([BUNDLED, ...ids])].map((id) => [id, id]))
}

/** The chosen model as the workers announce it, with `id`, `max_context` and `lookback`; null if none has it. */
export function chosenModel(workers, model, horizon) {
  const held = workers.filter(isForecasting).flatMap(({ models = [] }) => (model ? models : models.slice(0, 1)))
  const known = held.filter(({ id, max_context }) => max_context && (!model || id === model))
  return known.sort((one, other) => autoLookback(other, horizon) - autoLookback(one, horizon))[0] ?? null
}

/** The bars that a model reads by itself. */
export function autoLookback({ lookback, min_lookback, max_context }, horizon) {
  const isTied = lookback && (min_lookback ?? lookback) === lookback
  const room = Math.max(max_context - horizon, Math.floor(max_context / 2))
  return isTied ? lookback : Math.min(room, lookback ?? room)
}

/** What must be said of a model wherever it is named; null if nothing. */
export function caution(id, revision = null) {
  return cautions.get(`${id}@${revision}`) ?? cautions.get(id) ?? null
}
