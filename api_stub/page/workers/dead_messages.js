/** Messages that no worker could read, for keys that may see them. */

import { get, key } from "../service/api.js"
import { byId, fillRows, showText } from "../common/elements.js"
import { count, ownTime } from "../common/format.js"
import { reason } from "../common/texts.js"

const MAX_SHOWN = 20
let refused = null // the last key that may not see them

/** Reads the newest ones. A key without the right to is asked for nothing again. */
export async function showDeadMessages() {
  const asked = key.get()
  if (asked === refused || byId("workers").hidden) return
  let [found, problem] = [{ messages: [], total: 0 }, null]
  try {
    found = await get(`dead-messages?limit=${MAX_SHOWN}`)
  } catch (error) {
    if ([401, 403].includes(error.status)) refused = asked
    else problem = `The messages that no worker could read are not known: ${reason(error)}`
  }
  const { messages, total } = found
  showText(byId("dead-problem"), problem)
  byId("dead").hidden = !total
  byId("dead-title").textContent = `${count(total)} ${total === 1 ? "message" : "messages"} that no worker could read`
  fillRows(byId("dead-messages").tBodies[0], messages.map(({ at, reason: why, queue, id, num_bytes: size }) => (
    [at ? ownTime(new Date(at * 1000)) : "?", why ?? "?", id ?? "?", queue ?? "?", size === null ? "?" : count(size)]
  )))
}
