/** Why a job is where it is, in words; below its row in the list. */

import { get } from "../service/api.js"
import { made, showFacts } from "../common/elements.js"
import { count, duration, ownTime } from "../common/format.js"
import { reason } from "../common/texts.js"

const PLACES = {
  waiting: "It waits in a queue.", delayed: "It waits for its time.", held: "A worker has it.", ended: "It has ended.",
  gone: "No worker will get it any more.", unknown: "Nothing is known about it.",
}

/** A table row of `width` cells that explains the job of an address; it fills when the service has answered. */
export function explanationRow(address, width) {
  const cell = made("td", { colspan: width, role: "status" }, "Asking the service…")
  fill(cell, address.split("/")[1])
  return made("tr", { class: "explanation" }, cell)
}

async function fill(cell, id) {
  try {
    const found = await get(`jobs/${id}/explanation`)
    const facts = made("dl", { class: "facts" })
    showFacts(facts, factsOf(found, id))
    cell.replaceChildren(made("p", {}, sentences(found).join(" ")), facts)
  } catch (error) {
    cell.textContent = reason(error)
  }
}

function sentences({ where, error, is_cancel_requested: isCancelled, dead_reason: dead, next }) {
  return [
    PLACES[where],
    isCancelled && "It is to be cancelled.",
    error && `It failed: ${error[1]} (${error[0]}).`,
    dead && `No worker could read its message: ${dead}.`,
    next,
  ].filter(Boolean)
}

function factsOf({ where, num_before: before, left_s: left, bars, attempts }, id) {
  const moment = (seconds) => (seconds ? ownTime(new Date(seconds * 1000)) : "?")
  return [
    before > 0 && ["Comes first", `${count(before)} ${before === 1 ? "job" : "jobs"}`],
    bars && ["Bars done", made("span", { class: "with-line" }, `${count(bars[0])} of ${count(bars[1])}`,
      made("progress", { value: bars[0], max: bars[1], "aria-label": "Bars done" }))],
    left > 0 && where !== "ended" && [where === "waiting" ? "Starts in about" : "Done in about", duration(left)],
    ...attempts.map(({ begun_at: begun, ended_at: ended, worker, how }, place) => [`Attempt ${count(place + 1)}`,
      how ?? (ended ? "ended" : "under way"), "", null, `${moment(begun)} to ${ended ? moment(ended) : "now"}, by ${worker}`]),
    ["Id", id],
  ].filter(Boolean)
}
