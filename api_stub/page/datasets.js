/** The files in the data folder, offered wherever a job may name one. */

import { get } from "./api.js"
import { byId, offer, showText } from "./elements.js"
import { reason } from "./texts.js"

export class Datasets {
  #isRead = false
  #listed = []
  #uploaded = new Set()

  /**
   * @param selects The ids of the lists that offer the files.
   * @param problem The id of the element that shows why there are none.
   */
  constructor(pool, selects, problem) {
    this.selects = selects
    this.problem = problem
    this.further = new Map() // by the id of a list, its other choices
    pool.onChange((state) => state && this.#read())
  }

  /** Offers a file that was uploaded here, which an earlier list lacks. */
  add(name) {
    this.#uploaded.add(name)
    this.show()
  }

  show() {
    const names = [...new Set([...this.#listed, ...this.#uploaded])].map((name) => [name, name])
    for (const id of this.selects) offer(byId(id), [...(this.further.get(id) ?? []), ...names])
  }

  /** Reads the list once. After a failure it is read again with the next update of the pool. */
  async #read() {
    if (this.#isRead) return
    this.#isRead = true
    try {
      const { datasets } = await get("datasets")
      this.#listed = datasets.map(({ name }) => name)
      this.show()
      showText(byId(this.problem), null)
    } catch (error) {
      this.#isRead = error.status >= 400 && error.status < 500 && error.status !== 429
      showText(byId(this.problem), reason(error))
    }
  }
}
