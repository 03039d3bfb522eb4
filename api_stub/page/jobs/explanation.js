/** Why a job is where it is, in words; below its row in the list. */
import { get } from "../service/api.js"
import { made, said, whole } from "../common/elements.js"
import { count, ownTime, timeLeft } from "../common/format.js"
import { waiting } from "../service/pool.js"
import { reason } from "../common/texts.js"

const NO_ADVICE = /^(Wait[.,]|The error says)/

/** A table row of `width` cells that explains the job of an address; it fills when the service has answered. */
export function explanationRow(address, width) {
  const cell = made("td", { colspan: width, role: "status" }, "Asking the service…")
  const [, id] = address.split("/")
  const show = (found) => cell.replaceChildren(explained(found, id))
  get(`jobs/${id}/explanation`).then(show).catch((error) => cell.replaceChildren(reason(error)))
  return made("tr", { class: "explanation" }, cell)
}

function explained(found, id) {
  const [progress, attempts] = history(found)
  const [text, named] = [made("p", {}, sentences(found).join(" ")), made("p", { class: "help" }, ...whole(`Id ${id}`))]
  return made("div", { class: "compared" }, made("div", {}, text, progress, named), attempts)
}

function sentences({ where, num_before: before, left_s: left, bars, error, next, ...of }) {
  const { text, rest } = waiting({ waiting: next }, { before, left })
  const now = where === "waiting" ? [text, rest] : where === "held"
    ? [said(where), bars && `${count(bars[0])} of ${count(bars[1])} bars are done`, left > 0 && timeLeft(left)] : [said(where)]
  return [
    `${now.filter(Boolean).join(", ")}.`,
    of.is_cancel_requested && "It is to be cancelled.",
    error && `It failed: ${reason({ code: error[0], message: error[1] })}.`,
    of.dead_reason && `No worker could read its message: ${of.dead_reason}.`,
    where !== "waiting" && !NO_ADVICE.test(next) && next,
  ].filter(Boolean)
}

/** How far it is, and what became of each attempt to compute it. */
function history({ where, bars, attempts }) {
  const moment = (seconds) => (seconds ? ownTime(new Date(seconds * 1000)) : "?")
  const lines = attempts.map(({ begun_at: begun, ended_at: ended, worker, how }, place) => made("li", {},
    made("strong", {}, `Attempt ${count(place + 1)}: ${how ?? (ended ? "ended" : "under way")}`),
    made("p", { class: "help" }, `${moment(begun)} to ${ended ? moment(ended) : "now"}, by `, ...whole(worker.replace(/^celery@/, "")))))
  return [bars && where === "held" ? made("progress", { value: bars[0], max: bars[1], "aria-label": "Bars done" }) : "",
    lines.length ? made("ol", { class: "timeline" }, ...lines) : ""]
}
