/** Whether anybody still tells of a job that runs: the workers, when they are looked at, or the job itself. */

const LONG_MS = 16_000 // workers tell every few seconds, and are looked at as often

export class Silence {
  #now
  #toldAt
  #news = ""

  constructor(now = () => performance.now()) {
    this.#now = now
    this.#toldAt = now()
  }

  /** The workers were looked at; `isTold` is whether one of them told of the job. */
  look(isTold) {
    if (isTold) this.#toldAt = this.#now()
  }

  /** The job told something; only what is new breaks the silence. */
  hear(news) {
    const text = JSON.stringify(news)
    if (text !== this.#news) this.#toldAt = this.#now()
    this.#news = text
  }

  get isLong() {
    return this.#now() - this.#toldAt > LONG_MS
  }
}
