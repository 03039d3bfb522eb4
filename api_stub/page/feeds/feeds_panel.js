/** Feeds: each symbol's newest forecast, sorted by any chance, how past forecasts did, and the fan of one symbol. */
import { get } from "../service/api.js"
import { sparkline } from "../charts/sparkline.js"
import { byId, made, offer, showFacts, showText } from "../common/elements.js"
import {
  NEAR, bars, count, digitsFor, digitsOf, duration, mapValues, price, share, signed, timesOf, zoneOf,
} from "../common/format.js"
import { reason } from "../common/texts.js"
import { currentView, onView } from "../common/views.js"
import { HIGHER, eventInWords } from "../forecast/answer.js"
import { Candles } from "../forecast/candle_file.js"
import { ForecastChart } from "../forecast/forecast_chart.js"
import { COLUMNS, showKey } from "../forecast/values.js"

const RANGE = ["close_q0.1", "close_q0.9"]
const CLOSES = 60 // of each symbol's small line
const MAX_NAMED = 4 // symbols that need somebody
const UNCHANGED_MS = 30_000 // so long rows are not read again if there is no new forecast
const HEADS = {
  symbol: "Symbol", closes: "Last closes", now: "Last close", change: "Expected change", close: "Close at the end",
  range: "80 % range",
}
const LATER = { last: "Last bar", state: "State" } // after the chances
/** An event in few signs, such as "High > +1% at 12". */
const short = (event) => (event === HIGHER ? "Ends higher"
  : event[0].toUpperCase() + event.slice(1).replace(/ *([<>]=?) */, " $1 ").replace(/last(?=[+-])/, ""))
const isPhone = matchMedia("(max-width: 40rem)")
const hasRoom = matchMedia("(min-width: 64rem)") // for the table and a chart
const DRIFTS = { too_narrow: "ranges too narrow", too_wide: "ranges too wide" }

export class FeedsPanel {
  #feed = null // as the service describes the one that is shown
  #rows = []
  #readAt = 0
  #sortedBy = null // an event; null for the order of names
  #opened = null // the symbol whose fan is shown
  #chart = null

  constructor(pool) {
    onView("feeds", () => pool.last && this.#read()) // before the first answer of `pool`, its listener reads
    pool.onChange((state) => state && currentView() === "feeds" && this.#read())
    byId("feed").addEventListener("change", () => {
      this.#sortedBy = this.#opened = null
      this.#read()
    })
  }

  async #read() {
    try {
      const { feeds } = await get("feeds")
      byId("no-feeds").hidden = feeds.length > 0
      byId("feed-box").hidden = !feeds.length
      if (!feeds.length) return
      offer(byId("feed"), feeds.map((name) => [name, name]))
      const path = `feeds/${encodeURIComponent(byId("feed").value)}`
      const feed = await get(path)
      const isKnown = feed.name === this.#feed?.name && feed.last_update === this.#feed.last_update
      if (isKnown && Date.now() - this.#readAt < UNCHANGED_MS) return
      const [latest, scores] = await Promise.all([get(`${path}/latest?closes=${CLOSES}`), get(`${path}/scores`)])
      this.#readAt = Date.now()
      if (this.#sortedBy === null && feed.name !== this.#feed?.name) this.#sortedBy = feed.options.events?.[0] ?? null
      this.#feed = feed
      this.#rows = latest.rows
      showText(byId("feeds-problem"), "")
      this.#showScores(scores.rows)
      this.#opened ??= hasRoom.matches ? this.#sorted[0]?.id : null
      await this.#open(this.#opened)
    } catch (error) {
      showText(byId("feeds-problem"), reason(error), () => this.#read())
    }
  }

  /** How past forecasts of all symbols did, and how many are current. */
  #showScores(rows) {
    const [late, off] = [(row) => !row.is_current, (row) => row.drift].map((is) => this.#rows.filter(is))
    const current = `${count(this.#rows.length - late.length)} of ${count(this.#rows.length)}`
    const unreliable = this.#named("too narrow or too wide:", off)
    const facts = [
      ["Up to date", current, late.length ? "warn" : "", null, this.#named("all but", late)],
      ["Unreliable ranges", count(off.length), off.length ? "warn" : "", null, unreliable],
    ]
    for (const { id, model, num_scored: scored, coverage_80: held, pinball_ratio: ratio } of rows) {
      if (id !== null || !scored) continue
      const better = `${share(Math.abs(1 - ratio))} ${ratio < 1 ? "better" : "worse"}`
      facts.push(["80\u00a0% ranges held", share(held), "", "range", `${model}, of ${count(scored)} bars`],
        ["Against the baseline", better, ratio < 1 ? "good" : "bad", "baseline", `${model}, by its error`])
    }
    showFacts(byId("feed-scores"), facts)
  }

  /** Names symbols after a text; each name leads to its chart. */
  #named(text, rows) {
    if (!rows.length) return "symbols"
    const names = rows.slice(0, MAX_NAMED).flatMap(({ id }) => [this.#button(id, () => this.#lead(id)), " "])
    const others = rows.length - MAX_NAMED
    return made("span", {}, `${text} `, ...names, others > 0 ? `and ${count(others)} more` : "")
  }

  async #lead(id) {
    await this.#open(id)
    byId("feed-figure").scrollIntoView({ block: "nearest" })
  }

  get #sorted() {
    const by = this.#sortedBy
    return by ? this.#rows.toSorted((one, other) => (other[by] ?? -1) - (one[by] ?? -1)) : this.#rows
  }

  #showRows() {
    const events = this.#feed.options.events ?? []
    const [by, rows] = [this.#sortedBy, this.#sorted]
    const stamps = [...new Set(rows.flatMap(({ last_time: last }) => last ?? []))]
    const zones = [...new Set(stamps.map((stamp) => zoneOf(stamp, null)))]
    const time = timesOf(stamps, zones.length === 1 ? "" : null, { ...NEAR, weekday: undefined })
    const last = zones.length === 1 && zones[0] ? `${LATER.last}, ${zones[0]}` : LATER.last
    const head = ([name, text]) => made("th", { scope: "col", class: name }, text)
    const heads = [...Object.entries(HEADS).map(head), ...events.map((event) => this.#eventHead(event)),
      ...Object.entries({ ...LATER, last }).map(head)]
    if (!by) heads[0].ariaSort = "ascending"
    const table = byId("feed-rows")
    const focused = table.contains(document.activeElement) ? document.activeElement.dataset.name : null
    byId("feed-scores").after(byId("feed-figure")) // on a phone, the chart stands below the row of its symbol
    table.tHead.replaceChildren(made("tr", {}, ...heads))
    table.tBodies[0].replaceChildren(...rows.map((row) => this.#row(row, events, time)))
    const opened = isPhone.matches && table.querySelector("[aria-current]")
    const cell = opened && made("td", { colspan: heads.length }, byId("feed-figure"))
    if (cell) opened.after(made("tr", { class: "opened" }, cell))
    if (focused) [...table.querySelectorAll("button")].find(({ dataset }) => dataset.name === focused)?.focus()
  }

  #eventHead(event) {
    const button = this.#button(event, () => {
      this.#sortedBy = this.#sortedBy === event ? null : event
      this.#showRows()
    }, short(event))
    const head = made("th", { scope: "col", title: eventInWords(event) }, button)
    head.ariaSort = this.#sortedBy === event ? "descending" : null
    return head
  }

  #row(row, events, time) {
    const { id, last_time: last, close_mean: mean, closes = [], error, drift } = row
    const digits = digitsOf({ close: closes.filter(Boolean) }) ?? digitsFor(mean ?? 1)
    const [low, high] = RANGE.map((name) => row[name] ?? null)
    const newest = price(closes.at(-1), digits)
    const change = closes.at(-1) && mean !== null ? 100 * (mean / closes.at(-1) - 1) : null
    const state = error ? `no forecast: ${error}` : row.is_current ? "up to date"
      : row.overdue_s ? `next bar is late by ${duration(row.overdue_s)}` : "being forecast"
    const badge = drift ? [" ", made("span", { class: "badge" }, DRIFTS[drift])] : []
    const kind = error ? "away" : row.overdue_s && !row.is_current ? "late" : "ready"
    const line = sparkline(closes, `${bars(closes.length)}, close from ${price(closes[0], digits)} to ${newest}`, Math.min(...closes), Math.max(...closes))
    const percents = change === null ? "" : `${signed(change, (percent) => price(percent, 2))} %`
    const moved = percents.replace(/^[+−](?=0[.,]00 )/, "")
    const cell = (name, title, ...parts) => made("td", { class: name, "data-head": title }, ...parts)
    const chances = events.map((event) => {
      const made = cell(`chance ${event === (this.#sortedBy ?? events[0]) ? "" : "other"}`, short(event), (row[event] ?? null) === null ? "" : share(row[event]))
      made.style.setProperty("--share", `${100 * (row[event] ?? 0)}%`)
      return made
    })
    return made("tr", id === this.#opened ? { "aria-current": "true" } : {},
      made("th", { scope: "row" }, this.#button(id, () => this.#lead(id))),
      cell("closes", HEADS.closes, line ?? ""), cell("now", HEADS.now, newest),
      cell(`change ${/^−/.test(moved) ? "bad" : /^\+/.test(moved) ? "good" : ""}`, "Expected", moved),
      cell("close", HEADS.close, mean === null ? "" : price(mean, digits)),
      cell("range", HEADS.range, low === null ? "" : `${price(low, digits)} – ${price(high, digits)}`), ...chances,
      cell("last", LATER.last, last ? time(last) : "none yet"),
      cell("state", LATER.state, made("span", { class: `dot ${kind}` }, state), ...badge))
  }

  #button(name, onClick, text = name) {
    return made("button", { type: "button", class: "quiet", "data-name": name, onclick: onClick }, text)
  }

  /** Shows the rows, a symbol's candles, its newest forecast, and the ends of earlier ones that are not over. */
  async #open(id) {
    this.#opened = id
    this.#showRows()
    const path = `feeds/${encodeURIComponent(this.#feed.name)}/series/${encodeURIComponent(id)}`
    const series = id && await get(path).catch((error) => showText(byId("feeds-problem"), reason(error)))
    byId("feed-figure").hidden = !series
    if (!series) return
    const { newest = {}, past } = series
    const { timestamps, ...columns } = series.bars
    const whole = timestamps.flatMap((_, index) => (COLUMNS.every((name) => columns[name][index]) ? index : []))
    const only = (values) => whole.map((index) => values[index])
    const candles = new Candles(id, only(timestamps), mapValues(columns, only))
    const numRead = candles.timestamps.indexOf(newest.last_time) + 1 || candles.length
    const forecast = newest.forecast ? { ...newest.forecast, paths: null } : null
    this.#chart ??= new ForecastChart(byId("feed-chart"))
    this.#chart.show(candles.slice(0, numRead), candles.slice(numRead), forecast, false, past)
    const levels = Object.keys(forecast?.quantiles ?? {})
    const followed = numRead < candles.length && "newer bars, not forecast yet"
    showKey(byId("feed-key"), { hasBars: true, followed, levels, numPast: past.length, chart: this.#chart })
    byId("feed-caption").textContent = forecast
      ? `${id} after ${this.#chart.time(newest.last_time)}, by ${newest.model?.id ?? "?"}`
      : `${id}: no forecast${newest.failure ? `: ${newest.failure.code}` : " yet"}`
  }
}
