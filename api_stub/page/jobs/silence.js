/** Detects that neither a worker's status nor a running job itself has shown progress for a while. */

const LONG_MS = 16_000 // workers announce their status every few seconds, and the page reads it as often

export class Silence {
  #now
  #lastSign
  #lastState = ""

  constructor(now = () => performance.now()) {
    this.#now = now
    this.#lastSign = now()
  }

  /** The workers' status has been read; `isNamed` is whether one of them names the job. */
  onWorkers(isNamed) {
    if (isNamed) this.#lastSign = this.#now()
  }

  /** The job has sent a state; only a new one ends the silence. */
  onJob(state) {
    const text = JSON.stringify(state)
    if (text !== this.#lastState) this.#lastSign = this.#now()
    this.#lastState = text
  }

  get isLong() { return this.#now() - this.#lastSign > LONG_MS }
}
