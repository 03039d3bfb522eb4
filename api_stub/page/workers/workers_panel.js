/** The state of the service: its figures, a table of its workers by pool, and whether it answers. */
import { get, key } from "../service/api.js"
import { sparkline } from "../charts/sparkline.js"
import { byId, fillRows, made, showFacts, showText, whole } from "../common/elements.js"
import { NONE, count, duration, ownTime, plural, roundly } from "../common/format.js"
import { isForecasting, isGpu, isReady } from "../service/pool.js"
import { deviceName, reason } from "../common/texts.js"

const MAX_POINTS = 150 // of a line: ten minutes
const MAX_SHOWN = 20 // messages
const ALL = "" // the name of the figures of all workers that forecast
const histories = new Map() // of the load and speed of each worker, each pool and all, since the page was opened
let refused = null // the last key that may not see messages
const STATES = { loading: "Loading its model", draining: "Finishing, then it stops" }

/** Shows the pool, or the error of reading it with a button that calls `onRetry`. */
export function showPool(pool, error, onRetry) {
  showText(byId("api-problem"), error && `${reason(error)} This page checks every few seconds.`, onRetry)
  showReadiness(pool)
  const pools = pool ? poolsOf(pool) : [] // the last reading may be out of date
  byId("fleet").hidden = !pools.length
  byId("no-workers").hidden = !pool || pool.workers.length > 0
  if (!pool) return
  const forecasting = pool.workers.filter(isForecasting)
  note(new Map([[ALL, handOf(forecasting)], ...pool.workers.map((worker) => [worker.node, handOf([worker])]),
    ...pools.map(({ queue, workers }) => [queue, handOf(workers)])]))
  showDeadMessages()
  showVerdict(pools, forecasting)
  showFigures(pool.workers, pools, handOf(forecasting))
  const table = byId("worker-rows")
  for (const body of [...table.tBodies]) body.remove()
  table.append(...pools.map(({ workers, ...of }) => made("tbody", {}, poolRow(of, workers), ...workers.flatMap(workerRows))))
}

/** Each queue with the workers that take from it, without those that have neither workers nor jobs. */
function poolsOf({ workers, queues }) {
  const names = new Set([...Object.keys(queues), ...workers.map(({ queue }) => queue)])
  const pools = [...names].map((queue) => {
    const { ready = 0, lengths: { high = 0, normal = 0, low = 0 } = {} } = queues[queue] ?? {}
    const own = workers.filter((worker) => worker.queue === queue)
    return { queue, ready, high, normal, low, waiting: high + normal + low, workers: own }
  })
  return pools.filter(({ workers: own, waiting }) => own.length || waiting)
}

/** What workers have in hand and `done`: `running` of so much `room`, that share as `load`, `speed` in bars a second. */
function handOf(workers) {
  const sum = (valueOf) => workers.reduce((total, worker) => total + Number(valueOf(worker) ?? 0), 0)
  const room = sum((worker) => (isForecasting(worker) ? worker.slots : 1))
  const running = sum((worker) => (isForecasting(worker) ? worker.sequences_running : worker.training !== null))
  const [speed, done] = [sum((worker) => worker.bars_per_s), sum((worker) => worker.jobs_done)]
  return { running, room, load: room ? running / room : 0, speed, done }
}

/** Says whether the workers are enough for what waits; what is worst comes first. */
function showVerdict(pools, forecasting) {
  const stuck = pools.find(({ ready, waiting }) => waiting && !ready)
  const behind = pools.find(({ workers, waiting }) => waiting && handOf(workers).load >= 1)
  const { queue, waiting } = stuck ?? behind ?? {}
  const command = made("code", {}, `kronos worker${queue?.endsWith(".finetune") ? " --role finetune" : ""}`)
  const free = roundly(1 - handOf(forecasting).load)
  const isLoading = forecasting.some(({ state }) => state === "loading")
  const soon = pools.some((pool) => pool.waiting) ? "what waits begins soon" : "nothing waits"
  const [kind, ...parts] = stuck ? ["away", `No worker is ready (${queueName(queue)}): ${waits(waiting)}. Start one: `, command]
    : behind ? ["late", `More work than workers: ${waits(waiting)}${waitOf(behind)}. Start another one: `, command]
    : forecasting.some(isReady) ? ["ready", `Enough workers: ${free} of the capacity is free, and ${soon}.`]
    : isLoading ? ["late", "The workers still load their models: jobs wait until one is ready."]
    : ["late", "No worker is ready to forecast. Start one: ", command]
  byId("fleet-verdict").className = `dot ${kind}`
  byId("fleet-verdict").replaceChildren(...parts)
}

/** How long the last job of a pool waits, by the jobs that the page has seen done; "" while there are none. */
function waitOf({ queue, waiting }) {
  const [first, last] = [histories.get(queue)[0], histories.get(queue).at(-1)]
  const [done, ms] = [last.done - first.done, last.at - first.at]
  return done > 0 ? ` about ${duration((waiting * ms) / 1000 / done)}` : ""
}

const waits = (number) => `${plural(number, "job")} ${number === 1 ? "waits" : "wait"}`

/** The figures of all workers. */
function showFigures(workers, pools, { room, load, speed }) {
  const [high, normal, low] = ["high", "normal", "low"].map((name) => pools.reduce((sum, pool) => sum + pool[name], 0))
  const [ready, atWork] = [isReady, (worker) => handOf([worker]).running].map((is) => count(workers.filter(is).length))
  const waiting = `${count(high)} urgent, ${count(normal)} normal, ${count(low)} can wait`
  const ofLoad = load < 1 ? "of what fits at once" : "full: new jobs wait"
  showFacts(byId("fleet-facts"), [
    ["Waiting jobs", count(high + normal + low), "", null, waiting],
    ["Workers ready", `${ready} of ${count(workers.length)}`, workers.every(isReady) ? "" : "warn", null, `${atWork} at work`],
    ...(room ? [["Load", withLine(roundly(load), ALL, "load"), "", null, ofLoad],
      ["Speed", withLine(`${count(speed)} bars/s`, ALL, "speed"), "", null, "forecast by all workers"]] : []),
  ])
}

const dot = (kind, text) => made("span", { class: `dot ${kind}` }, text)

function row(kind, head, cells) {
  return made("tr", { class: kind }, head, ...Object.entries(cells).map(([name, of]) => made("td", { class: name }, of)))
}

/** A pool's row: what waits in its queue, and what its workers have in hand together. */
function poolRow({ queue, ready, waiting }, workers) {
  const isFull = workers.some(isForecasting) && handOf(workers).load >= 1
  const kind = waiting && !ready ? "away" : ready < workers.length || isFull ? "late" : "ready"
  return row("pool", made("th", { scope: "rowgroup", colspan: 2 }, queueName(queue)), {
    state: dot(kind, `${count(ready)} of ${count(workers.length)} ready${isFull ? ", full" : ""}`), ...inHand(workers, queue),
    waiting: plural(waiting, "job"), models: "", done: "", failed: "", up: "",
  })
}

/** A worker's row, and its warnings below it. */
function workerRows(worker) {
  const { node, device, device_description: described, sequences_waiting: waiting = 0, jobs_failed: failed, models = [] } = worker
  const names = models.flatMap(({ id, engine }, place) => (
    [place ? ", " : "", id, made("span", { class: "engine" }, engine ? ` (${engine} engine)` : "")]))
  const serves = names.length ? names : [worker.model?.id ?? "loading"]
  const work = isForecasting(worker) ? serves : [worker.training?.name ?? "training"]
  const works = made("span", {}, ...work)
  works.title = works.textContent
  const name = made("th", { scope: "row", title: node }, ...whole(node.replace(/^celery@/, "")))
  const own = row("worker", name, {
    device: deviceName(device, described), state: dot(...stateOf(worker)), ...inHand([worker], node),
    waiting: isForecasting(worker) ? `${count(waiting)} paths` : "", models: works,
    done: count(worker.jobs_done), failed: made("span", { class: failed ? "warn" : "" }, count(failed)),
    up: duration(worker.uptime_s),
  })
  const warnings = [worker.problem, worker.device_warning, ...models.map((model) => model.engine_warning)].filter(Boolean)
  return [own, ...[...new Set(warnings)].map((text) => made("tr", {}, made("td", { colspan: 10, class: "warning" }, text)))]
}

/** Green needs nobody, yellow and red need somebody; a worker without work has no colour. */
function stateOf(worker) {
  const { state, problem, training: job } = worker
  const { room, load } = handOf([worker])
  if (problem) return ["away", "Not ready"]
  if (job) return ["ready", job.stage === "backtest" ? "Backtesting" : "Training"]
  if (!isReady(worker)) return [state === "draining" ? "late" : "", STATES[state] ?? state]
  return load >= 1 ? ["late", "Full"] : load ? ["ready", "Busy"] : room ? ["", "Idle"] : ["ready", "Ready"]
}

/** The load and the speed of workers, by the name of their history; one that trains has its progress instead. */
function inHand(workers, name) {
  const { room, load, speed } = handOf(workers)
  const { stage, step, num_steps: steps } = (workers.length === 1 && workers[0].training) || {}
  const done = steps ? `${count(step ?? 0)} of ${count(steps)} ${stage === "backtest" ? "forecasts" : "steps"}` : roundly(load)
  const isFast = room && workers.some(isForecasting)
  const rate = isFast ? withLine(`${count(speed)} bars/s`, name, "speed") : ""
  return { load: room ? withLine(done, name, "load") : "", speed: rate }
}

/** The line at the top of the page. */
function showReadiness(pool) {
  const line = byId("readiness")
  const ready = pool?.workers.filter(isReady) ?? []
  const canForecast = ready.some(isForecasting)
  const devices = [...new Set(ready.map((worker) => (isGpu(worker) ? "graphics card" : "processor")))].sort().join(", ")
  const text = !pool ? "The service does not answer"
    : canForecast ? `${count(ready.length)} of ${plural(pool.workers.length, "worker")} ready`
    : pool.workers.some(isForecasting) ? "No worker is ready to forecast yet"
    : `No worker${pool.workers.length ? " for forecasts" : ""} is running`
  line.className = `readiness ${!pool ? "away" : canForecast ? "ready" : "late"}`
  const where = made("span", { class: "devices" }, canForecast ? `: ${devices}` : "")
  if (line.textContent !== text + where.textContent) line.replaceChildren(text, where) // screen readers read every change
}

/** A text and, once there are two readings, a line of the `load` or `speed` of a name, on the scale that all share. */
function withLine(text, name, of) {
  const points = (histories.get(name) ?? []).map((point) => point[of])
  const most = of === "load" ? 1 : Math.max(...[...histories.values()].flat().map((point) => point[of]))
  const line = sparkline(points, `${of} since this page was opened`, 0, most) ?? ""
  return made("span", { class: "with-line" }, made("span", {}, text), line)
}

function queueName(queue) {
  const isTraining = queue.endsWith(".finetune")
  const device = queue.replace(/\.finetune$/, "").endsWith("gpu") ? "graphics card" : "processor"
  return `${isTraining ? "Training and backtests" : "Forecasts"}, ${device}`
}

/** Notes readings, `{load, speed}`, by name; those that are gone are forgotten. */
function note(readings) {
  for (const name of histories.keys()) if (!readings.has(name)) histories.delete(name)
  for (const [name, reading] of readings) {
    histories.set(name, [...(histories.get(name) ?? []), { ...reading, at: Date.now() }].slice(-MAX_POINTS))
  }
}

/** Reads the newest messages that no worker could read. A key without the right to is asked for nothing again. */
async function showDeadMessages() {
  const asked = key.get()
  if (asked === refused || byId("workers").hidden) return
  let [found, problem] = [{ messages: [], total: 0 }, null]
  try {
    found = await get(`dead-messages?limit=${MAX_SHOWN}`)
  } catch (error) {
    if ([401, 403].includes(error.status)) refused = asked
    else problem = `The messages that no worker could read are not known: ${reason(error)}`
  }
  const { messages, total } = found
  showText(byId("dead-problem"), problem)
  byId("dead").hidden = !total
  byId("dead-title").textContent = `${plural(total, "message")} that no worker could read`
  fillRows(byId("dead-messages").tBodies[0], messages.map(({ at, reason: why, queue, id, num_bytes: size }) => (
    [at ? ownTime(new Date(at * 1000)) : NONE, why ?? NONE, id ?? NONE, queue ?? NONE, size === null ? NONE : count(size)]
  )))
}
