/** The state of the service: its workers by pool, the number of jobs in each queue, and whether it answers. */

import { byId, made, showFacts, showText } from "../common/elements.js"
import { count, duration, percent } from "../common/format.js"
import { isForecasting, isGpu, isReady } from "../service/pool.js"
import { deviceName, reason } from "../common/texts.js"
import { lineOf, note } from "./history.js"
import { showDeadMessages } from "./dead_messages.js"

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
    made("p", { class: "placeholder" }, "No worker is running. Jobs wait until one is ready. The service's operator can start one: ",
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
  const facts = made("dl", { class: "facts" })
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
  const ready = pool?.workers.filter((worker) => isReady(worker) && isForecasting(worker)) ?? []
  const devices = [...new Set(ready.map((worker) => (isGpu(worker) ? "graphics card" : "processor")))].sort().join(", ")
  const text = !pool ? "The service does not answer"
    : ready.length ? `${count(ready.length)} ${ready.length === 1 ? "worker" : "workers"} ready`
    : pool.workers.some(isForecasting) ? "No worker is ready yet" : "No worker is running"
  line.className = `readiness ${!pool ? "away" : ready.length ? "ready" : ""}`
  const where = made("span", { class: "devices" }, ready.length ? `: ${devices}` : "")
  if (line.textContent !== text + where.textContent) line.replaceChildren(text, where) // screen readers read every change
}

/** A worker: its device and what it does, then its load, facts and warnings. */
function card(worker, hasLines) {
  const [now, load, facts] = isForecasting(worker) ? forecasting(worker, hasLines) : training(worker)
  const common = [["Jobs", `${count(worker.jobs_done)} done, ${count(worker.jobs_failed)} failed`], ["Running for", duration(worker.uptime_s)]]
  const { room, load: share } = handOf([worker])
  const busy = isReady(worker) && room ? (share ? `Busy ${Math.ceil(100 * share)} %` : "Idle") : null
  const state = worker.problem ? "Not ready" : now ?? busy ?? STATES[worker.state] ?? worker.state
  const kind = worker.problem ? "away" : isReady(worker) ? "ready" : ""
  const parts = [
    made("div", { class: "row apart" },
      made("div", {}, made("h4", {}, deviceName(worker.device, worker.device_description)), made("p", { class: "node" }, worker.node)),
      made("span", { class: `pill ${kind}` }, state)),
    ...load,
    made("dl", {}, ...[...facts, ...common].map(([name, value]) => made("div", {}, made("dt", {}, name), made("dd", {}, value)))),
  ]
  const warnings = [worker.problem, worker.device_warning, ...(worker.models ?? []).map((model) => model.engine_warning)]
  for (const text of new Set(warnings.filter(Boolean))) parts.push(made("p", { class: "warning" }, text))
  return made("article", { class: "card" }, ...parts)
}

/** `hasLines` asks for lines over time, which say nothing new about the only worker of a pool. */
function forecasting(worker, hasLines) {
  const { slots = 0, sequences_running: running = 0, sequences_waiting: waiting = 0 } = worker
  const models = (worker.models ?? []).map(({ id, engine }) => (engine ? `${id} (${engine} engine)` : id))
  const load = hasLines && lineOf(worker.node, "load")
  const speed = `${count(worker.bars_per_s ?? 0)} bars/s`
  const bar = slots ? loadBar("Load", running, slots, `${count(running)} of ${count(slots)} paths at once`) : []
  return [null, load ? [...bar, load] : bar, [
    ["Waiting", `${count(waiting)} paths`],
    ["Speed", hasLines ? withLine(speed, worker.node, "speed") : speed],
    ["Models", (models.length ? models : [worker.model?.id ?? "loading"]).join(", ")],
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

function withLine(text, name, of) {
  const line = lineOf(name, of)
  return made("span", { class: "with-line" }, text, ...(line ? [line] : []))
}

function loadBar(name, value, max, text) {
  return [made("div", { class: "load" }, made("progress", { value, max, "aria-label": name }), made("span", {}, text))]
}

function queueName(queue) {
  const isTraining = queue.endsWith(".finetune")
  const device = queue.replace(/\.finetune$/, "").endsWith("gpu") ? "graphics card" : "processor"
  return `${isTraining ? "Training and backtests" : "Forecasts"}, ${device}`
}
