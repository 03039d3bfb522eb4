/** What may be chosen: models, and devices by the workers that are there. */

import { byId, offer, tell } from "./elements.js"
import { isForecasting, isGpu, isReady } from "./pool.js"

const BUNDLED = "kronos-tiny" // which every worker has

/** Devices of the workers that pass `serves`: auto, cpu, each live GPU, and cuda whether there is one or not. */
export function offerDevices(select, workers, serves) {
  const gpus = new Map()
  for (const worker of workers.filter((worker) => serves(worker) && isGpu(worker))) {
    const name = worker.device_description?.name
    const state = isReady(worker) ? "" : `, ${worker.state}`
    gpus.set(worker.device, `${worker.device}${name ? `: ${name}` : ""}${state}`)
  }
  const none = [...gpus.keys()].some((device) => device.startsWith("cuda")) ? "any" : "none is ready now"
  const isGone = offer(select, [
    ["auto", "auto: a GPU where one is ready"],
    ["cpu", "cpu"],
    ["cuda", `cuda: ${none}`],
    ...[...gpus].sort(),
  ])
  tell(byId(`${select.id}-gone`), isGone && `No worker has ${select.value} any more. It stays chosen.`)
}

/** The models that a forecast may name, and that training may start from, of those that are registered. */
export function offerModels(models) {
  const ids = models.filter(({ damaged }) => !damaged).map(({ id }) => id)
  offer(byId("model"), [["", "the worker's own"], ...ids.map((id) => [id, id])])
  offer(byId("start"), [...new Set([BUNDLED, ...ids])].map((id) => [id, id]))
}

/** Bars that the chosen model sees at most, by what workers tell; null where nobody does. */
export function maxContext(workers, model) {
  for (const worker of workers.filter(isForecasting)) {
    if (!model && worker.max_context) return worker.max_context
    for (const held of worker.models ?? []) {
      if (held.id === model && held.max_context) return held.max_context
    }
    if (worker.model?.id === model && worker.max_context) return worker.max_context
  }
  return null
}
