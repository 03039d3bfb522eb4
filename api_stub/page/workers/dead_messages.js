/** Messages that no worker could read, for keys that may see them. */

import { get } from "../service/api.js"
import { byId, fillRows } from "../common/elements.js"
import { count, ownTime } from "../common/format.js"

const MAX_SHOWN = 20
let isAllowed = true

/** Reads the newest ones. A key without the right to is asked for nothing again. */
export async function showDeadMessages() {
  if (!isAllowed || byId("workers").hidden) return
  try {
    const { messages, total } = await get(`dead-messages?limit=${MAX_SHOWN}`)
    byId("dead").hidden = !total
    byId("dead-title").textContent = `${count(total)} ${total === 1 ? "message" : "messages"} that no worker could read`
    fillRows(byId("dead-messages").tBodies[0], messages.map(({ at, reason, queue, id, num_bytes: size }) => (
      [at ? ownTime(new Date(at * 1000)) : "?", reason ?? "?", id ?? "?", queue ?? "?", size === null ? "?" : count(size)]
    )))
  } catch (error) {
    isAllowed = ![401, 403].includes(error.status)
    byId("dead").hidden = true
  }
}
