/** The state of the service: its workers, the number of jobs in each queue, and whether it answers. */

import { byId, fillRows, made, showText } from "../common/elements.js"
import { count, duration } from "../common/format.js"
import { isForecasting, isGpu, isReady } from "../service/pool.js"
import { deviceName, reason } from "../common/texts.js"
import { note, sparkline } from "./history.js"
import { showDeadMessages } from "./dead_messages.js"

const STATES = { ready: "Ready", loading: "Loading its model", draining: "Finishing its jobs, then it stops" }

/** Shows the pool, or the error of reading it with a button that calls `onRetry`. */
export function showPool(pool, error, onRetry) {
  showText(byId("api-problem"), error && `${reason(error)} This page checks every few seconds.`, onRetry)
  showReadiness(pool)
  if (!pool) {
    // The last reading may be out of date.
    byId("worker-cards").replaceChildren()
    byId("queues").tBodies[0].replaceChildren()
    return
  }
  note(pool.workers)
  showDeadMessages()
  const cards = pool.workers.map(card)
  byId("worker-cards").replaceChildren(...(cards.length ? cards : [
    made("p", {}, "No worker is running. Jobs wait until one is ready. The service's operator can start one: ",
      made("code", {}, "kronos worker"), "."),
  ]))
  fillRows(byId("queues").tBodies[0], Object.entries(pool.queues).map(([queue, { ready, lengths }]) => (
    [queueName(queue), count(ready), count(lengths.high), count(lengths.normal), count(lengths.low)]
  )))
}

/** The line at the top of the page. */
function showReadiness(pool) {
  const line = byId("readiness")
  const ready = pool?.workers.filter((worker) => isReady(worker) && isForecasting(worker)) ?? []
  const devices = [...new Set(ready.map((worker) => (isGpu(worker) ? "graphics card" : "processor")))].sort().join(", ")
  const text = !pool ? "The service does not answer"
    : ready.length ? `${count(ready.length)} ${ready.length === 1 ? "worker" : "workers"} ready: ${devices}`
    : pool.workers.some(isForecasting) ? "No worker is ready yet" : "No worker is running"
  line.className = `readiness ${!pool ? "away" : ready.length ? "ready" : ""}`
  if (line.textContent !== text) line.textContent = text // screen readers read every change
}

/** A worker: first what it does and on which device, then its load, facts and warnings, and its id at the end. */
function card(worker) {
  const [now, load, facts] = isForecasting(worker) ? forecasting(worker) : training(worker)
  const state = worker.problem ? "Not ready" : now ?? STATES[worker.state] ?? worker.state
  const kind = worker.problem ? "away" : isReady(worker) ? "ready" : ""
  const parts = [
    made("h3", {}, made("span", { class: `state ${kind}` }, state), made("span", { class: "device" }, deviceName(worker.device, worker.device_description))),
    ...load,
    made("dl", {}, ...[...facts, ...commonFacts(worker)].flatMap(([name, value]) => [made("dt", {}, name), made("dd", {}, value)])),
  ]
  const warnings = [worker.problem, worker.device_warning, ...(worker.models ?? []).map((model) => model.engine_warning)]
  for (const text of new Set(warnings.filter(Boolean))) parts.push(made("p", { class: "warning" }, text))
  parts.push(made("p", { class: "node" }, worker.node))
  return made("article", { class: "card" }, ...parts)
}

function commonFacts(worker) {
  return [
    ["Jobs", `${count(worker.jobs_done)} done, ${count(worker.jobs_failed)} failed`],
    ["Running for", duration(worker.uptime_s)],
  ]
}

function forecasting(worker) {
  const { slots = 0, sequences_running: running = 0, sequences_waiting: waiting = 0 } = worker
  const models = (worker.models ?? []).map(({ id, engine }) => (engine ? `${id} (${engine} engine)` : id))
  const [load, speed] = ["load", "speed"].map((name) => sparkline(worker.node, name, `${name} since this page was opened`))
  const bar = slots ? loadBar("Load", running, slots, `${count(running)} of ${count(slots)} paths at once`) : []
  return [null, load ? [...bar, load] : bar, [
    ["Waiting", `${count(waiting)} paths`],
    ["Speed", speed ? withLine(`${count(worker.bars_per_s ?? 0)} bars/s`, speed) : `${count(worker.bars_per_s ?? 0)} bars/s`],
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

function withLine(text, line) {
  return made("span", { class: "with-line" }, text, line)
}

function loadBar(name, value, max, text) {
  return [made("div", { class: "load" }, made("progress", { value, max, "aria-label": name }), made("span", {}, text))]
}

function queueName(queue) {
  const isTraining = queue.endsWith(".finetune")
  const device = queue.replace(/\.finetune$/, "").endsWith("gpu") ? "graphics card" : "processor"
  return `${isTraining ? "Training and backtests" : "Forecasts"}, ${device}`
}
