/** Why a job is where it is, in words; below its row in the list. */

import { get } from "../service/api.js"
import { made } from "../common/elements.js"
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
    const facts = await get(`jobs/${id}/explanation`)
    cell.replaceChildren(made("p", {}, sentences(facts).join(" ")), attempts(facts.attempts), made("p", { class: "help" }, `Id: ${id}`))
  } catch (error) {
    cell.textContent = reason(error)
  }
}

function sentences({ where, num_before: before, left_s: left, bars, error, is_cancel_requested: isCancelled, dead_reason: dead, next }) {
  const verb = where === "waiting" ? "starts" : "is done"
  return [
    PLACES[where],
    before > 0 && `${count(before)} ${before === 1 ? "job comes" : "jobs come"} first.`,
    bars && `${count(bars[0])} of ${count(bars[1])} bars are done.`,
    left > 0 && where !== "ended" && `It ${verb} in about ${duration(left)}.`,
    isCancelled && "It is to be cancelled.",
    error && `It failed: ${error[1]} (${error[0]}).`,
    dead && `No worker could read its message: ${dead}.`,
    next,
  ].filter(Boolean)
}

function attempts(all) {
  const moment = (seconds) => (seconds ? ownTime(new Date(seconds * 1000)) : "?")
  return made("ul", {}, ...all.map(({ begun_at: begun, ended_at: ended, worker, how }) => made("li", {},
    `${moment(begun)} to ${ended ? moment(ended) : "now"}, by ${worker}${how ? `: ${how}` : ""}`)))
}
