/** Whether anybody still tells of a job that runs: the workers, when they are looked at, or the job itself. */

const LOOKS = 4 // at the workers: within as many, one that holds a job has told of it

export class Silence {
  #numLooks = 0
  #news = ""

  /** The workers were looked at; `isTold` is whether one of them told of the job. */
  look(isTold) {
    this.#numLooks = isTold ? 0 : this.#numLooks + 1
  }

  /** The job told something; only what is new breaks the silence. */
  hear(news) {
    const text = JSON.stringify(news)
    if (text !== this.#news) this.#numLooks = 0
    this.#news = text
  }

  get isLong() {
    return this.#numLooks >= LOOKS
  }
}
