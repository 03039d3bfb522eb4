/** The workers and queues, looked at every few seconds while the page is seen. */

import { get } from "./api.js"

const INTERVAL_MS = 4000

/** Told of each look: `{workers, queues}`, or the error. */
export class Pool {
  #tellers = []
  #timer = null
  last = null

  onChange(tell) {
    this.#tellers.push(tell)
  }

  start() {
    document.addEventListener("visibilitychange", () => document.hidden || this.look())
    this.look()
  }

  async look() {
    clearTimeout(this.#timer)
    try {
      this.last = await get("workers")
      this.#tellers.forEach((tell) => tell(this.last, null))
    } catch (error) {
      this.last = null
      this.#tellers.forEach((tell) => tell(null, error))
    }
    clearTimeout(this.#timer)
    if (!document.hidden) this.#timer = setTimeout(() => this.look(), INTERVAL_MS)
  }
}

export const isReady = ({ state }) => state === "ready"
export const isForecasting = ({ role = "forecast" }) => role === "forecast"
export const isGpu = ({ device }) => device !== "cpu"

/** Whether a worker computes a job, as far as it tells: of many jobs it names some, and an older release none. */
export function mayCompute(worker, jobId) {
  const { jobs_running: told, num_jobs_running: count } = worker
  return isForecasting(worker) && (!told || count > told.length || told.some(({ id }) => id === jobId))
}
