/** The state of the service: its workers, the number of jobs in each queue, and whether it answers. */

import { byId, fillRows, made, showText } from "./elements.js"
import { isForecasting, isReady } from "./pool.js"
import { count, duration, reason } from "./texts.js"

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
  const cards = pool.workers.map(card)
  byId("worker-cards").replaceChildren(...(cards.length ? cards : [
    made("p", {}, "No worker is running. Jobs wait in their queues until one is ready. Start one with ",
      made("code", {}, "kronos worker"), "."),
  ]))
  fillRows(byId("queues").tBodies[0], Object.entries(pool.queues).map(([queue, { ready, lengths }]) => (
    [queue, ready, count(lengths.high), count(lengths.normal), count(lengths.low)]
  )))
}

/** The line at the top of the page. */
function showReadiness(pool) {
  const line = byId("readiness")
  const ready = pool?.workers.filter((worker) => isReady(worker) && isForecasting(worker)) ?? []
  const devices = [...new Set(ready.map(({ device }) => device))].sort().join(", ")
  const text = !pool ? "The service does not answer"
    : ready.length ? `${ready.length} ${ready.length === 1 ? "worker" : "workers"} ready on ${devices}`
    : pool.workers.some(isForecasting) ? "No worker is ready yet" : "No worker is running"
  line.className = `readiness ${!pool ? "away" : ready.length ? "ready" : ""}`
  if (line.textContent !== text) line.textContent = text // screen readers read every change
}

function card(worker) {
  const facts = isForecasting(worker) ? forecastFacts(worker) : finetuneFacts(worker)
  const list = made("dl")
  for (const [name, value] of [...commonFacts(worker), ...facts]) {
    list.append(made("dt", {}, name), made("dd", {}, value))
  }
  const parts = [made("h3", {}, worker.node), list]
  const warnings = [worker.device_warning, ...(worker.models ?? []).map((model) => model.engine_warning)]
  for (const text of new Set(warnings.filter(Boolean))) parts.push(made("p", { class: "warning" }, text))
  return made("article", { class: "card" }, ...parts)
}

function commonFacts(worker) {
  const name = worker.device_description?.name
  return [
    ["State", worker.state],
    ["Device", name ? `${worker.device}, ${name}` : worker.device],
    ["Queue", worker.queue],
    ["Jobs", `${count(worker.jobs_done)} done, ${count(worker.jobs_failed)} failed`],
    ["Up", duration(worker.uptime_s)],
  ]
}

function forecastFacts(worker) {
  const models = (worker.models ?? []).map(({ id, engine }) => (engine ? `${id} (${engine} engine)` : id))
  return [
    ["Models", (models.length ? models : [worker.model?.id ?? "loading"]).join(", ")],
    ["Paths", `${count(worker.sequences_running ?? 0)} running, ${count(worker.sequences_waiting ?? 0)} waiting`],
    ["Speed", `${count(Math.round(worker.bars_per_s ?? 0))} bars/s`],
  ]
}

function finetuneFacts({ training }) {
  if (!training) return [["Training", "nothing now"]]
  if (training.stage === "backtest") {
    const share = training.num_steps ? `, ${count(training.step)} of ${count(training.num_steps)} forecasts` : ""
    return [["Backtest", `${training.name}${share}`]]
  }
  const parts = [training.name, training.stage]
  if (training.step !== null) parts.push(`step ${count(training.step)} of ${count(training.num_steps)}`)
  return [["Training", parts.filter(Boolean).join(", ")]]
}
