/** The jobs that this browser has sent: their states, their links, and the candles of forecasts. */
import { explanationRow } from "./explanation.js"
import { get, remove } from "../service/api.js"
import { Candles } from "../forecast/candle_file.js"
import { byId, showText, whole } from "../common/elements.js"
import { headline } from "../forecast/answer.js"
import { count, ownTime, percent, timeLeft, writingOf } from "../common/format.js"
import { verdictText } from "../common/scores.js"
import { forget, onOtherTab, recall, remember } from "../common/storage.js"
import { waiting } from "../service/pool.js"
import { nextStep, stateName, words } from "../common/texts.js"

const MAX_JOBS = 12
const COLUMNS = 6
const KINDS = { forecasts: "Forecast", backtests: "Backtest", finetunes: "Training" }
const MAX_STORED_BARS = 3000 // of one job; browsers store about 5 MB for a site
const MAX_STORED_JOB = 100_000 // characters
const STORED = ["candles", "job"] // of each job, beside the list
const NUM_ALWAYS = 5 // filters that are shown without jobs, too
const goesOn = ({ state }) => NEXT[state] === "Follow"
const NEXT = { done: "Open result", running: "Follow", queued: "Follow" }

export class RecentJobs {
  #jobs = []
  #explained = null // the address of the job that is explained
  #explanation = null // its row
  #filter = "all"
  /** Called with the kind of a job to send once more, the job, its title and what this browser keeps of it. */
  onAgain = () => {}

  constructor() {
    byId("forget-jobs").addEventListener("click", () => this.#discard(this.#jobs))
    byId("job-counts").addEventListener("click", ({ target }) => {
      this.#filter = target.closest("button")?.dataset.filter ?? this.#filter
      this.#show(this.#jobs)
    })
    onOtherTab("jobs", () => this.#show())
    addEventListener("hashchange", () => {
      showText(byId("discarded"), "")
      this.#show(this.#jobs)
    })
    this.#show()
  }

  /**
   * Adds a job that the API has accepted, by its path below v1/, such as "forecasts/ID", with what was sent, to send it
   * again, and the `{lookback, actual, samples, hash}` of a forecast, to draw it again, or the `{hash}` of a backtest.
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
    const next = view.state === "failed" && view.error ? nextStep(view.error) : ""
    const news = { state: view.state, note: noteOf(view, view.result && this.candlesOf(address)), next }
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

  /** The other jobs of that title that are done, such as all backtests of a file; without one, all of the kind. */
  like(address) {
    const title = this.titleOf(address)
    const kind = address.split("/")[0]
    const isLike = (job) => job.address.startsWith(`${kind}/`) && (!title || job.title === title)
    return this.#others(address).filter((job) => job.state === "done" && isLike(job))
  }

  /** Reads the states of the jobs that have not ended. */
  async refresh() {
    for (const { address } of this.#jobs.filter(goesOn)) {
      const view = await get(`${address}?estimate=true`).catch((error) => this.onRefusal(address, error))
      if (view) this.update(address, view)
    }
  }

  /** Keeps that the API does not have a job any more, if that is what an error says. */
  onRefusal(address, { status }) {
    if (status === 404 || status === 410) this.update(address, { state: "expired" })
  }

  #others(address) { return this.#jobs.filter((job) => job.address !== address) }

  #keep(jobs) {
    for (const { address } of recall("jobs", [])) {
      if (jobs.every((job) => job.address !== address)) STORED.forEach((what) => forget(`${what}.${address}`))
    }
    if (jobs.length) remember("jobs", jobs)
    else forget("jobs")
    this.#show(jobs)
  }

  #show(jobs = recall("jobs", [])) {
    this.#jobs = jobs
    for (const id of ["recent", "forget-jobs", "job-counts"]) byId(id).hidden = !jobs.length
    const numberOf = (name) => jobs.filter(({ state }) => [state, "all"].includes(name)).length
    if (!numberOf(this.#filter)) this.#filter = "all"
    for (const [place, chip] of [...byId("job-counts").children].entries()) {
      const { filter } = chip.dataset
      chip.lastChild.textContent = count(numberOf(filter))
      chip.disabled = !numberOf(filter)
      chip.hidden = chip.disabled && place >= NUM_ALWAYS
      chip.ariaPressed = String(filter === this.#filter)
    }
    byId("no-jobs").hidden = jobs.length > 0
    const shown = jobs.filter(({ state }) => [state, "all"].includes(this.#filter))
    placeRows(byId("recent-jobs").tBodies[0], shown.flatMap((job) => (
      [this.#row(job), ...(job.address === this.#explained ? [this.#explanation] : [])])))
  }

  /** Takes jobs off the list, and offers to put them back. */
  #discard(jobs) {
    const kept = jobs.map((job) => [job, ...STORED.map((what) => recall(`${what}.${job.address}`, null))])
    this.#keep(this.#jobs.filter((job) => !jobs.includes(job)))
    const what = jobs.length === 1 ? `${jobs[0].title} is` : `${count(jobs.length)} jobs are`
    showText(byId("discarded"), `${what} off the list.`, () => {
      for (const [{ address }, ...values] of kept) {
        STORED.forEach((what, place) => values[place] && remember(`${what}.${address}`, values[place]))
      }
      showText(byId("discarded"), "")
      this.#keep([...this.#jobs, ...jobs].sort((one, other) => other.at - one.at))
      byId("forget-jobs").focus()
    }, "Undo")
    byId("discarded").querySelector("button").focus()
  }

  /** Cancels a job that goes on; one that has ended leaves the list. */
  async #drop(job) {
    if (!goesOn(job)) return this.#discard([job])
    await remove(job.address).catch((error) => this.onRefusal(job.address, error))
    return this.refresh()
  }

  /** Explains a job, or no longer. */
  #explain(address) {
    this.#explained = this.#explained === address ? null : address
    this.#explanation = this.#explained && explanationRow(address, COLUMNS)
    this.#show(this.#jobs)
  }

  /** Sends a job once more. */
  #repeat({ address, title }) {
    const known = this.candlesOf(address) ?? recall(`candles.${address}`, null)
    this.onAgain(address.split("/")[0], recall(`job.${address}`, null), title, known)
  }

  /** The rare actions of a job, in the menu of its row. */
  #openMenu(address) {
    const job = this.#jobs.find((one) => one.address === address)
    const [again, drop] = byId("job-menu").children
    again.hidden = !isStored(job) || isRepeated(job)
    again.onclick = () => this.#repeat(job)
    drop.textContent = goesOn(job) ? "Cancel the job" : "Remove from the list"
    drop.onclick = () => this.#drop(job)
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
    const [open, again] = row.querySelectorAll(".steps > *")
    again.hidden = !isRepeated(job)
    open.hidden = !again.hidden
    open.textContent = NEXT[job.state] ?? (job.next ? "Correct it" : "Open")
    open.ariaLabel = `${open.textContent}: ${job.title}`
    row.querySelector("a").ariaCurrent = location.hash === `#${job.address}` ? "true" : null
    row.querySelector("[aria-expanded]").ariaExpanded = String(job.address === this.#explained)
    return row
  }

  #newRow(job) {
    const { address, title, at } = job
    const row = byId("job-row").content.firstElementChild.cloneNode(true)
    const [why, link, time, open, again, more] = row.querySelectorAll("a, time, button")
    row.dataset.address = address
    link.append(...whole(title))
    link.href = open.href = `#${address}`
    row.cells[1].textContent = KINDS[address.split("/")[0]]
    Object.assign(time, { dateTime: new Date(at).toISOString(), textContent: ownTime(new Date(at)) })
    Object.assign(again, { ariaLabel: `Send again: ${title}`, onclick: () => this.#repeat(job) })
    Object.assign(why, { ariaLabel: `What happens with ${title}?`, onclick: () => this.#explain(address) })
    Object.assign(more, { ariaLabel: `More for ${title}`, onclick: () => this.#openMenu(address) })
    return row
  }
}

/** Whether this browser has what was sent, so that it can send it again; and whether that is what comes next. */
const isStored = ({ address }) => recall(`job.${address}`, null) !== null
const isRepeated = (job) => !(job.state in NEXT) && !job.next && isStored(job)

/** What a row adds to the state of a job: what came of it, why it failed or waits, or the share of it that is done. */
function noteOf(view, candles) {
  const { state, error, result, progress, waiting: why, bars_done: bars, bars_total: total } = view
  const { jobs_before: before, seconds_left: left = null } = view
  if (error) return state === "failed" ? words(error) : ""
  if (result) return outcomeOf(result, candles)
  const { text, rest } = waiting({ waiting: why }, { before, left })
  if (state === "queued") return [text, rest].filter(Boolean).join(", ")
  const { step, num_steps: steps, forecasts_done: done = step, forecasts_total: all = steps } = progress ?? {}
  const share = total ? bars / total : all ? (done ?? 0) / all : null
  if (state !== "running" || share === null) return ""
  return [`${percent(Math.floor(100 * share) / 100)} done`, timeLeft(left)].filter(Boolean).join(", ")
}

/** A result in one line: a forecast's headline, or the verdict on each model. */
function outcomeOf({ series, report, model, verdict }, candles) {
  const models = report?.models ?? (verdict ? { [model.id]: { verdict } } : {})
  const verdicts = Object.entries(models).map(([name, of]) => `${name}: ${verdictText(of.verdict)}`)
  if (!series) return verdicts.join("; ")
  const [first] = series
  const known = candles?.lookback ?? { timestamps: [], columns: {}, timezone: null }
  const write = writingOf([...known.timestamps, ...first.timestamps], known, first)
  const { moved, when, between } = headline(first, known.columns.close?.at(-1), write)
  return [`${moved} ${when}`, between].filter(Boolean).join(", ").replaceAll(" %", "\u00a0%")
}

/** Makes these rows those of a table; a row that stays is not moved, because it would lose the focus. */
function placeRows(body, rows) {
  for (const row of [...body.rows]) if (!rows.includes(row)) row.remove()
  rows.forEach((row, index) => {
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null)
  })
}
