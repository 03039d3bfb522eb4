/** The backtest section: how good one or two models were on the past of a file. */
import { get, key } from "../service/api.js"
import { badField, byId, numberIn, offer, said, save, showText } from "../common/elements.js"
import { count, ownTime, timeLeft } from "../common/format.js"
import { SectionJob } from "../jobs/section_job.js"
import { Reading } from "../common/reading.js"
import { Settings, showChanged } from "../common/settings.js"
import { hashOf, keepVerdicts } from "../common/skill.js"
import { reason } from "../common/texts.js"
import { currentView } from "../common/views.js"
import { idOf } from "../forecast/candle_file.js"

const AT_HAND = "file:" // no data set can have this name
const TITLE = "Backtest on "
const NUMBERS = ["windows", "horizon", "stride", "samples", "seed", "top"]

export class BacktestPanel {
  #candles = null
  reading = new Reading("backtest-")
  #shown = null // the report, and the id of its backtest

  constructor(pool, recent, datasets) {
    Object.assign(this, { recent, datasets })
    this.job = new SectionJob("backtests", "test", "testing", pool, recent, {
      check: (form) => this.#check(form),
      submit: () => this.#send(),
      forget: () => this.#forget(),
      describe: (...now) => this.#describe(...now),
      show: ({ report }) => this.#report(report),
    })
    this.settings = new Settings("backtest", () => showChanged("backtest-advanced", "backtest-file-form"))
    this.onCandles(null)
    byId("other-backtest").addEventListener("change", () => this.#compare())
    byId("whole-report").addEventListener("click", (event) => (
      this.#saveReport(event).catch((error) => showText(byId("testing-problem"), reason(error)))))
  }

  /** Offers the file that is open for a forecast, and chooses one that is opened here. */
  onCandles(candles) {
    this.#candles = candles
    const text = candles ? `${candles.name} (open)` : "none is open yet"
    this.datasets.further.set("backtest-data", [[AT_HAND, text]])
    this.datasets.show()
    if (candles && currentView() === "backtest") byId("backtest-data").value = AT_HAND
  }

  #check(form) {
    const isMissing = byId("backtest-data").value === AT_HAND && !this.#candles
    const isSame = byId("backtest-other").value && byId("backtest-other").value === byId("backtest-model").value
    if (isMissing) return "Choose a file first: one of yours, or one that the service stores."
    return isSame ? "Compare with another model, or with none." : badField(form)
  }

  #send() {
    const { value } = byId("backtest-data")
    const [name, known] = value === AT_HAND ? [this.#candles.name, { hash: hashOf(this.#candles) }] : [value, null]
    this.job.send(this.#jobOf(), `${TITLE}${name}`, known)
  }

  #jobOf() {
    const path = byId("backtest-data").value
    const { name, timestamps, columns } = this.#candles ?? {}
    const other = byId("backtest-other").value
    const job = {
      schema_version: 1,
      data: path === AT_HAND ? { instruments: [{ id: idOf(name), timestamps, ...columns }] } : { path },
      models: [byId("backtest-model").value || null, ...(other ? [other] : [])],
      lookback: numberIn("backtest-lookback") ?? "auto",
      start: byId("backtest-from").value || null,
      end: byId("backtest-to").value || null,
      cost_bps: numberIn("backtest-costs"),
      ...Object.fromEntries(NUMBERS.map((name) => [name, numberIn(`backtest-${name}`)])),
    }
    return path === AT_HAND ? job : { ...job, reading: this.reading.options }
  }

  #forget() {
    byId("tested").hidden = true
    byId("not-tested").hidden = false
  }

  #describe(now, place, isSilent) {
    if (isSilent) return { text: "The worker that ran this is gone. Another one will go on where it was.", share: null }
    const { progress } = now
    if (progress?.stage !== "forecasting") return { text: said(progress?.stage) ?? said("reading"), share: null }
    const { forecasts_done: done, forecasts_total: total, seconds_left: left } = progress
    const share = total ? done / total : null
    return { text: `${count(done)} of ${count(total)} forecasts`, share, rest: timeLeft(left) }
  }

  #report(report) {
    const address = `backtests/${this.job.id}`
    const hash = this.recent.hashOf(address)
    if (hash) keepVerdicts(hash, report.models)
    this.#shown = { report, id: this.job.id }
    const others = this.recent.like(address).map((job) => [job.address, `${ownTime(new Date(job.at))}, ${job.title}`])
    byId("other-backtest").value = ""
    byId("other").hidden = !others.length
    offer(byId("other-backtest"), [["", "no other backtest"], ...others])
    this.#compare()
    byId("whole-report").href = `v1/backtests/${encodeURIComponent(this.job.id)}/report`
  }

  async #draw(other = null) {
    const { report: own, id } = this.#shown
    const { showReport, together } = await import("./report.js") // which the first screen does not need
    showReport(other ? together(own, other) : own, id, this.recent.titleOf(`backtests/${id}`)?.replace(TITLE, ""))
  }

  /** Shows the models of another backtest of the same candles next to those of this one. */
  async #compare() {
    const { report, id } = this.#shown
    const address = byId("other-backtest").value
    showText(byId("other-problem"), null)
    this.#draw()
    if (!address) return
    const other = await get(address).catch((error) => (
      showText(byId("other-problem"), reason(error), () => this.#compare())))
    if (!other || this.#shown.id !== id || byId("other-backtest").value !== address) return
    const isSame = JSON.stringify(other.result.report.instruments) === JSON.stringify(report.instruments)
    if (isSame) await this.#draw(other.result.report)
    showText(byId("other-problem"), isSame
      ? "The models of two backtests. Whether they differ by more than chance, only one backtest of both can say."
      : "That backtest has other candles or moments, so its figures cannot be compared with these.")
  }

  /** A browser sends no key with a link, so with a key the report is fetched and saved. */
  async #saveReport(event) {
    if (!key.get()) return
    event.preventDefault()
    const path = new URL(byId("whole-report").href).pathname.split("/v1/").at(-1)
    save(await get(path, { headers: { Accept: "text/html" }, read: (answer) => answer.blob() }), "backtest.html")
  }
}
