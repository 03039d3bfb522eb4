/** The state of the service: its workers by pool, the number of jobs in each queue, and whether it answers. */

import { get, key } from "../service/api.js"
import { sparkline } from "../charts/sparkline.js"
import { byId, fillRows, made, showFacts, showText, whole } from "../common/elements.js"
import { count, duration, ownTime, percent } from "../common/format.js"
import { isForecasting, isGpu, isReady } from "../service/pool.js"
import { deviceName, reason } from "../common/texts.js"

const MAX_POINTS = 150 // of a line: ten minutes
const MAX_SHOWN = 20 // messages
const histories = new Map() // of the load and speed of each worker and pool since the page was opened, and when they were read
let refused = null // the last key that may not see messages
const STATES = { ready: "Ready", loading: "Loading its model", draining: "Finishing its jobs, then it stops" }

/** Shows the pool, or the error of reading it with a button that calls `onRetry`. */
export function showPool(pool, error, onRetry) {
  showText(byId("api-problem"), error && `${reason(error)} This page checks every few seconds.`, onRetry)
  showReadiness(pool)
  if (!pool) return byId("pools").replaceChildren() // the last reading may be out of date
  const pools = poolsOf(pool)
  note(new Map([...pool.workers.map((worker) => [worker.node, handOf([worker])]),
    ...pools.map(({ queue, workers }) => [queue, handOf(workers)])]))
  showDeadMessages()
  byId("pools").replaceChildren(...pools.map(poolPart), ...(pool.workers.length ? [] : [
    made("p", { class: "placeholder" }, made("strong", {}, "No worker is running"), "Jobs wait until one is ready. The service's operator can start one: ",
      made("code", {}, "kronos worker"), "."),
  ]))
}

/** Each queue with the workers that take from it, without those that have neither workers nor jobs. */
function poolsOf({ workers, queues }) {
  const names = new Set([...Object.keys(queues), ...workers.map(({ queue }) => queue)])
  const pools = [...names].map((queue) => {
    const { ready = 0, lengths = {} } = queues[queue] ?? {}
    const { high = 0, normal = 0, low = 0 } = lengths
    return { queue, ready, high, normal, low, workers: workers.filter((worker) => worker.queue === queue) }
  })
  return pools.filter(({ workers: own, high, normal, low }) => own.length || high + normal + low)
}

/** What workers have in hand: `running` of so much `room` at once, that share as `load`, and `speed` in bars per second. */
function handOf(workers) {
  const sum = (valueOf) => workers.reduce((total, worker) => total + Number(valueOf(worker) ?? 0), 0)
  const room = sum((worker) => (isForecasting(worker) ? worker.slots : 1))
  const running = sum((worker) => (isForecasting(worker) ? worker.sequences_running : worker.training !== null))
  return { running, room, load: room ? running / room : 0, speed: sum((worker) => worker.bars_per_s) }
}

/** A pool: its queue's jobs, its load and speed over time, and a card for each worker. */
function poolPart({ queue, ready, high, normal, low, workers }) {
  const { running, room, load, speed } = handOf(workers)
  const isTraining = queue.endsWith(".finetune")
  const facts = made("dl", { class: "facts stats" })
  showFacts(facts, [
    ["Waiting jobs", count(high + normal + low), "", null, `${count(high)} urgent, ${count(normal)} normal, ${count(low)} can wait`],
    ["Workers ready", `${count(ready)} of ${count(workers.length)}`],
    ...(room ? [["Load", withLine(isTraining ? `${count(running)} of ${count(room)} at work` : percent(load), queue, "load"), "", null,
      load < 1 ? "" : "full: new jobs wait"]] : []),
    ...(isTraining || !workers.length ? [] : [["Speed", withLine(`${count(speed)} bars/s`, queue, "speed")]]),
  ])
  const cards = workers.map((worker) => card(worker, workers.length > 1))
  return made("section", { class: "pool" }, made("h3", {}, queueName(queue)), facts, made("div", { class: "cards" }, ...cards))
}

/** The line at the top of the page. */
function showReadiness(pool) {
  const line = byId("readiness")
  const ready = pool?.workers.filter(isReady) ?? []
  const canForecast = ready.some(isForecasting)
  const devices = [...new Set(ready.map((worker) => (isGpu(worker) ? "graphics card" : "processor")))].sort().join(", ")
  const text = !pool ? "The service does not answer"
    : canForecast ? `${count(ready.length)} of ${count(pool.workers.length)} ${pool.workers.length === 1 ? "worker" : "workers"} ready`
    : pool.workers.some(isForecasting) ? "No worker is ready to forecast yet" : `No worker${pool.workers.length ? " for forecasts" : ""} is running`
  line.className = `readiness ${!pool ? "away" : canForecast ? "ready" : ""}`
  const where = made("span", { class: "devices" }, canForecast ? `: ${devices}` : "")
  if (line.textContent !== text + where.textContent) line.replaceChildren(text, where) // screen readers read every change
}

/** A worker: which one it is and what it does, then its load, facts and warnings, and its id at the end. */
function card(worker, hasLines) {
  const [now, load, facts] = isForecasting(worker) ? forecasting(worker, hasLines) : training(worker)
  const common = [["Jobs", `${count(worker.jobs_done)} done, ${count(worker.jobs_failed)} failed`], ["Running for", duration(worker.uptime_s)]]
  const { room, load: share } = handOf([worker])
  const busy = isReady(worker) && room ? (share ? `Busy ${Math.ceil(100 * share)} %` : "Idle") : null
  const state = worker.problem ? "Not ready" : now ?? busy ?? STATES[worker.state] ?? worker.state
  const kind = worker.problem ? "away" : isReady(worker) ? "ready" : ""
  const details = made("dl", { class: "details" })
  showFacts(details, [...facts, ...common])
  const parts = [
    made("div", { class: "head" },
      made("h4", {}, ...whole(`${worker.node.replace(/^celery@/, "")} · ${deviceName(worker.device, worker.device_description)}`)),
      made("span", { class: `pill ${kind}` }, state)),
    ...load, details,
  ]
  const warnings = [worker.problem, worker.device_warning, ...(worker.models ?? []).map((model) => model.engine_warning)]
  for (const text of new Set(warnings.filter(Boolean))) parts.push(made("p", { class: "warning" }, text))
  parts.push(made("p", { class: "node" }, worker.node))
  return made("article", { class: "card" }, ...parts)
}

/** `hasLines` asks for lines over time, which say nothing new about the only worker of a pool. */
function forecasting(worker, hasLines) {
  const { slots = 0, sequences_running: running = 0, sequences_waiting: waiting = 0 } = worker
  const models = (worker.models ?? []).map(({ id, engine }) => (engine ? `${id} (${engine} engine)` : id))
  const speed = `${count(worker.bars_per_s ?? 0)} bars/s`
  const paths = `${count(running)} of ${count(slots)} paths at once`
  const stats = made("dl", { class: "stats" })
  showFacts(stats, hasLines ? [
    ["Load", withLine(`${count(slots && 100 * running / slots)} %`, worker.node, "load"), "", null, paths],
    ["Speed", withLine(speed, worker.node, "speed")],
  ] : [])
  const bar = slots && !hasLines ? loadBar("Load", running, slots, paths) : []
  return [null, [stats, ...bar], [
    ["Waiting", `${count(waiting)} paths`],
    ...(hasLines ? [] : [["Speed", speed]]),
    ["Models", made("span", {}, ...whole((models.length ? models : [worker.model?.id ?? "loading"]).join(", ")))],
  ]]
}

function training({ training: job }) {
  if (!job) return [null, [], [["For", "training and backtests"]]]
  const isBacktest = job.stage === "backtest"
  const unit = isBacktest ? "forecasts" : "steps"
  const done = job.num_steps ? `${count(job.step ?? 0)} of ${count(job.num_steps)} ${unit}` : ""
  return [isBacktest ? "Backtesting" : "Training", done ? loadBar("Progress", job.step ?? 0, job.num_steps, done) : [],
    [["Name", job.name], ...(isBacktest || !job.stage ? [] : [["Part", job.stage]])]]
}

/** A text, and below it a line of the `load` or `speed` of a name, with its span and peak, once there are two readings. */
function withLine(text, name, of) {
  const points = histories.get(name) ?? []
  const peak = Math.max(0, ...points.map((point) => point[of]))
  const line = sparkline(points.map((point) => point[of]), `${of} since this page was opened`, 0, of === "load" ? 1 : peak)
  const span = duration((points.at(-1)?.at - points[0]?.at) / 1000)
  return made("span", { class: "with-line" }, text, ...(line ? [line, made("small", {},
    `last ${span}, peak ${of === "load" ? percent(peak) : `${count(peak)} bars/s`}`)] : []))
}

function loadBar(name, value, max, text) {
  return [made("div", { class: "load" }, made("progress", { value, max, "aria-label": name }), made("span", { class: "help" }, text))]
}

function queueName(queue) {
  const isTraining = queue.endsWith(".finetune")
  const device = queue.replace(/\.finetune$/, "").endsWith("gpu") ? "graphics card" : "processor"
  return `${isTraining ? "Training and backtests" : "Forecasts"}, ${device}`
}

/** Notes readings, `{load, speed}`, by the name of a worker or a pool; those that are gone are forgotten. */
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
  byId("dead-title").textContent = `${count(total)} ${total === 1 ? "message" : "messages"} that no worker could read`
  fillRows(byId("dead-messages").tBodies[0], messages.map(({ at, reason: why, queue, id, num_bytes: size }) => (
    [at ? ownTime(new Date(at * 1000)) : "?", why ?? "?", id ?? "?", queue ?? "?", size === null ? "?" : count(size)]
  )))
}
