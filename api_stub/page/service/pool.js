/** The workers and queues, read every few seconds while the page is visible. */
import { get, uploads } from "./api.js"
import { duration, plural } from "../common/format.js"

const INTERVAL_MS = 4000
const SILENT_MS = 8000 // the API gives up on Redis after 4 s

/** Calls its listeners with `{workers, queues}` after each reading, or with null and the error. */
export class Pool {
  #listeners = []
  #timer = null
  last = null

  onChange(listener) { this.#listeners.push(listener) }

  start() {
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh())
    this.refresh()
  }

  async refresh() {
    clearTimeout(this.#timer)
    let problem = null
    const reading = get("workers", { silentMs: SILENT_MS })
    this.last = await reading.catch((error) => { problem = error }) ?? null
    if (this.last) uploads.maxBytes = this.last.limits?.max_upload_bytes ?? Infinity
    this.#listeners.forEach((listener) => listener(this.last, problem))
    clearTimeout(this.#timer)
    if (!document.hidden) this.#timer = setTimeout(() => this.refresh(), INTERVAL_MS)
  }
}

export const isReady = ({ state }) => state === "ready"
export const isForecasting = ({ role = "forecast" }) => role === "forecast"
export const isGpu = ({ device }) => device !== "cpu"

/**
 * Describes a job that waits: why, if no worker can take it, with the command that starts one, or its `place`: how many
 * jobs come `before` it, and for how many seconds, `left`, they keep it waiting; null if unknown.
 */
export function waiting({ waiting: reason }, place) {
  const command = /with: (.+)$/.exec(reason ?? "")?.[1]
  if (command) {
    const ready = command.includes("finetune") ? "worker for training and backtests" : "worker"
    const how = /^Every .+ queue \S+ (.+)\. Jobs/.exec(reason)?.[1]
    const text = how ? `Every ${ready} ${how}. Wait: this starts by itself once one is ready. The service's operator can start another: ${command}`
      : `No ${ready} is running. This starts by itself once the service's operator starts one: ${command}`
    return { text, share: null }
  }
  const { before = null, left = null } = place ?? {}
  if (before === null) return { text: "Waiting to start", share: null }
  const text = before ? `Waiting: ${plural(before, "job")} ${before === 1 ? "comes" : "come"} first` : "Waiting: it comes next"
  return { text, share: null, rest: left ? `starts in about ${duration(left)}` : "" }
}

/** Whether a worker may compute a job. Its status names only some of many jobs; older releases name none. */
export function mayCompute(worker, jobId) {
  const { jobs_running: named, num_jobs_running: count } = worker
  return isForecasting(worker) && (!named || count > named.length || named.some(({ id }) => id === jobId))
}
