/** The files that the service stores, offered wherever a job may name one. */
import { get } from "./api.js"
import { byId, offer, said, showText } from "../common/elements.js"
import { reason } from "../common/texts.js"
import { onView } from "../common/views.js"

export class Datasets {
  #isRead = false
  #isNeeded = false
  #listed = null // until it has been read
  #uploaded = new Set()
  /** Why the service stores no files, in words; null if it does. */
  whyNone = null

  /** Reads the list once the user has come to a view that needs it. */
  constructor(pool) {
    this.further = new Map() // by the id of a list, its other choices
    pool.onChange((state) => state && this.#read())
    const need = () => {
      this.#isNeeded = true
      if (pool.last) this.#read()
    }
    for (const view of ["backtest", "finetune"]) onView(view, need)
  }

  /** Offers a file that was uploaded here, which an earlier list lacks. */
  add(name) {
    this.#uploaded.add(name)
    this.show()
  }

  show() {
    const names = [...new Set([...(this.#listed ?? []), ...this.#uploaded])].map((name) => [name, name])
    const none = names.length || !this.#listed ? [] : [["", "none yet"]]
    for (const id of ["dataset", "backtest-data"]) offer(byId(id), [...(this.further.get(id) ?? none), ...names])
  }

  /** Reads the list once. After a failure it is read again with the next update of the pool. */
  async #read() {
    if (this.#isRead || !this.#isNeeded) return
    this.#isRead = true
    try {
      const { datasets } = await get("datasets")
      this.#listed = datasets.map(({ name }) => name)
      this.show()
      showText(byId("datasets-problem"), null)
    } catch (error) {
      this.#isRead = error.status >= 400 && error.status < 500 && error.status !== 429
      this.whyNone = error.code === "DATA_NOT_ALLOWED" ? said("no-files") : null
      byId("dataset-upload").disabled = this.whyNone !== null
      showText(byId("datasets-problem"), this.whyNone ?? reason(error))
    }
  }
}
