/** The jobs that this browser has sent: their states, their links, and the candles of forecasts. */

import { explanationRow } from "./explanation.js"
import { get, remove } from "../service/api.js"
import { Candles } from "../forecast/candle_file.js"
import { byId, whole } from "../common/elements.js"
import { count, ownTime, percent, timeLeft } from "../common/format.js"
import { forget, onOtherTab, recall, remember } from "../common/storage.js"
import { waiting } from "../service/pool.js"
import { nextStep, stateName, words } from "../common/texts.js"

const MAX_JOBS = 12
const COLUMNS = 6
const KINDS = { forecasts: "Forecast", backtests: "Backtest", finetunes: "Training" }
const MAX_STORED_BARS = 3000 // of one job; browsers store about 5 MB for a site
const MAX_STORED_JOB = 100_000 // characters
const NUM_ALWAYS = 5 // filters that are shown without jobs, too
const goesOn = ({ state }) => NEXT[state] === "Follow"
const NEXT = { done: "Open result", running: "Follow", queued: "Follow" }

export class RecentJobs {
  #jobs = []
  #explained = null // the address of the job that is explained
  #explanation = null // its row
  #filter = "all"
  /** Called with the kind of a job that is to be sent once more, the job, its title and what this browser keeps of it. */
  onAgain = () => {}

  constructor() {
    byId("forget-jobs").addEventListener("click", () => this.#keep([]))
    byId("job-counts").addEventListener("click", ({ target }) => {
      this.#filter = target.closest("button")?.dataset.filter ?? this.#filter
      this.#show(this.#jobs)
    })
    onOtherTab("jobs", () => this.#show())
    addEventListener("hashchange", () => this.#show(this.#jobs))
    this.#show()
  }

  /**
   * Adds a job that the API has accepted, by its path below v1/, such as "forecasts/ID", with what was sent, to send it again, and the
   * `{lookback, actual, samples, hash}` of a forecast, to draw it again, or the `{hash}` of a backtest.
   */
  add(address, title, candles, job) {
    this.#keep([{ address, title, at: Date.now(), state: "queued" }, ...this.#others(address)].slice(0, MAX_JOBS))
    const numBars = (candles?.lookback?.length ?? 0) + (candles?.actual?.length ?? 0)
    if (candles && numBars <= MAX_STORED_BARS) remember(`candles.${address}`, candles)
    if (JSON.stringify(job).length <= MAX_STORED_JOB) remember(`job.${address}`, job)
  }

  /** Keeps a job's new state, how much of it is done, and why it failed, if it is in the list. */
  update(address, view) {
    const job = this.#jobs.find((one) => one.address === address)
    const news = { state: view.state, note: noteOf(view), next: view.state === "failed" && view.error ? nextStep(view.error) : "" }
    if (!job || Object.entries(news).every(([name, value]) => (job[name] ?? "") === value)) return
    Object.assign(job, news)
    this.#keep(this.#jobs)
  }

  /** The `{lookback, actual, samples}` of a forecast; null if this browser does not have them. */
  candlesOf(address) {
    const { lookback, actual, samples, hash } = recall(`candles.${address}`, {})
    const asCandles = ({ name, timestamps, columns, timezone }) => new Candles(name, timestamps, columns, timezone)
    return lookback && actual ? { lookback: asCandles(lookback), actual: asCandles(actual), samples, hash } : null
  }

  /** The hash of the candles of a job; null if this browser does not have it. */
  hashOf(address) { return recall(`candles.${address}`, {}).hash ?? null }

  /** What a job is, as in the list; undefined if it is not in it. */
  titleOf(address) { return this.#jobs.find((job) => job.address === address)?.title }

  /** The other jobs of the same title that are done, such as all backtests of one file; of an unknown title, all of the kind. */
  like(address) {
    const title = this.titleOf(address)
    const kind = address.split("/")[0]
    return this.#others(address).filter((job) => (job.state === "done" && job.address.startsWith(`${kind}/`) && (!title || job.title === title)))
  }

  /** Reads the states of the jobs that have not ended. */
  async refresh() {
    for (const { address } of this.#jobs.filter(goesOn)) {
      try {
        this.update(address, await get(`${address}?estimate=true`))
      } catch (error) {
        this.onRefusal(address, error)
      }
    }
  }

  /** Keeps that the API does not have a job any more, if that is what an error says. */
  onRefusal(address, { status }) {
    if (status === 404 || status === 410) this.update(address, { state: "expired" })
  }

  #others(address) { return this.#jobs.filter((job) => job.address !== address) }

  #keep(jobs) {
    for (const { address } of recall("jobs", [])) {
      if (!jobs.some((job) => job.address === address)) for (const what of ["candles", "job"]) forget(`${what}.${address}`)
    }
    if (jobs.length) remember("jobs", jobs)
    else forget("jobs")
    this.#show(jobs)
  }

  #show(jobs = recall("jobs", [])) {
    this.#jobs = jobs
    byId("recent").hidden = byId("forget-jobs").hidden = !jobs.length
    const numberOf = (name) => jobs.filter(({ state }) => [state, "all"].includes(name)).length
    if (!numberOf(this.#filter)) this.#filter = "all"
    byId("job-counts").hidden = !jobs.length
    for (const [place, chip] of [...byId("job-counts").children].entries()) {
      const { filter } = chip.dataset
      chip.lastChild.textContent = count(numberOf(filter))
      chip.disabled = !numberOf(filter)
      chip.hidden = chip.disabled && place >= NUM_ALWAYS
      chip.ariaPressed = String(filter === this.#filter)
    }
    byId("no-jobs").hidden = jobs.length > 0
    const shown = jobs.filter(({ state }) => [state, "all"].includes(this.#filter))
    const rows = shown.flatMap((job) => (job.address === this.#explained ? [this.#row(job), this.#explanation] : [this.#row(job)]))
    placeRows(byId("recent-jobs").tBodies[0], rows)
  }

  /** Cancels a job that goes on; one that has ended leaves the list. */
  async #drop(address) {
    if (!goesOn(this.#jobs.find((job) => job.address === address))) return this.#keep(this.#others(address))
    try {
      await remove(address)
    } catch (error) {
      this.onRefusal(address, error)
    }
    return this.refresh()
  }

  /** Explains a job, or no longer. */
  #explain(address) {
    this.#explained = this.#explained === address ? null : address
    this.#explanation = this.#explained && explanationRow(address, COLUMNS)
    this.#show(this.#jobs)
  }

  /** The row of a job: the one that is shown, with its new state, or a new one. */
  #row(job) {
    const shown = [...byId("recent-jobs").tBodies[0].rows].find(({ dataset }) => dataset.address === job.address)
    const row = shown ?? this.#newRow(job)
    const state = row.querySelector(".state")
    if (state.textContent !== stateName(job.state)) state.textContent = stateName(job.state)
    state.className = `state pill state-${job.state}`
    const [note, next] = row.cells[4].children
    note.textContent = job.note ?? ""
    next.textContent = job.next ?? ""
    const [open, again, , drop] = row.querySelectorAll(".steps > *")
    again.hidden = job.state in NEXT || Boolean(job.next) || !recall(`job.${job.address}`, null)
    open.hidden = !again.hidden
    open.textContent = NEXT[job.state] ?? (job.next ? "Correct it" : "Open")
    drop.textContent = goesOn(job) ? "Cancel" : "Remove"
    for (const action of [open, drop]) action.ariaLabel = `${action.textContent}: ${job.title}`
    row.querySelector("a").ariaCurrent = location.hash === `#${job.address}` ? "true" : null
    row.querySelector("[aria-expanded]").ariaExpanded = String(job.address === this.#explained)
    return row
  }

  #newRow({ address, title, at }) {
    const row = byId("job-row").content.firstElementChild.cloneNode(true)
    const [link, time, open, again, why, drop] = row.querySelectorAll("a, time, button")
    const [kind] = address.split("/")
    const send = () => this.onAgain(kind, recall(`job.${address}`, null), title, this.candlesOf(address) ?? recall(`candles.${address}`, null))
    row.dataset.address = address
    link.append(...whole(title))
    link.href = open.href = `#${address}`
    row.cells[1].textContent = KINDS[kind]
    Object.assign(time, { dateTime: new Date(at).toISOString(), textContent: ownTime(new Date(at)) })
    Object.assign(again, { ariaLabel: `Send again: ${title}`, onclick: send })
    Object.assign(why, { ariaLabel: `What happens with ${title}?`, onclick: () => this.#explain(address) })
    drop.onclick = () => this.#drop(address)
    return row
  }
}

/** What a row adds to the state of a job: why it failed or waits, or the share of it that is done. */
function noteOf({ state, error, bars_done: bars, bars_total: total, progress, waiting: why, jobs_before: before, seconds_left: left = null }) {
  if (error) return state === "failed" ? words(error) : ""
  const { text, rest } = waiting({ waiting: why }, { before, left })
  if (state === "queued") return [text, rest].filter(Boolean).join(", ")
  const { step, num_steps: steps, forecasts_done: done = step, forecasts_total: all = steps } = progress ?? {}
  const share = total ? bars / total : all ? (done ?? 0) / all : null
  return state === "running" && share !== null ? [`${percent(Math.floor(100 * share) / 100)} done`, timeLeft(left)].filter(Boolean).join(", ") : ""
}

/** Makes these rows those of a table; a row that stays is not moved, because it would lose the focus. */
function placeRows(body, rows) {
  for (const row of [...body.rows]) if (!rows.includes(row)) row.remove()
  rows.forEach((row, index) => {
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null)
  })
}
