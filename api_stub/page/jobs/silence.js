/** Detects that neither a worker's status nor a running job itself has shown progress for a while. */

const LONG_MS = 16_000 // workers announce their status every few seconds, and the page reads it as often

export class Silence {
  #lastSign = performance.now()
  #lastState = ""

  /** A worker's status names the job, or the job has sent a state; only a new one ends the silence. */
  note(isNamed, state = this.#lastState) {
    if (isNamed || state !== this.#lastState) this.#lastSign = performance.now()
    this.#lastState = state
  }

  get isLong() { return performance.now() - this.#lastSign > LONG_MS }
}
