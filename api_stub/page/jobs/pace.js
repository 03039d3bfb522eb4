/** How long a job still takes, by the progress that the page has seen. */

const SOON_S = 0.5 // before, a rate would be chance

export class Pace {
  #now
  #first = null

  constructor(now = () => performance.now()) {
    this.#now = now
  }

  /** Seconds until all is done; null while that is not known. A job that began again is measured anew. */
  left(done, total) {
    const at = this.#now() / 1000
    if (!this.#first || done < this.#first.done || total !== this.#first.total) this.#first = { at, done, total }
    const [elapsed, gained] = [at - this.#first.at, done - this.#first.done]
    return gained > 0 && elapsed > SOON_S ? (elapsed * (total - done)) / gained : null
  }
}
