/** The chart of a forecast: candles, the actual bars after them, median, ranges, paths, earlier forecasts, and volume. */
import {
  CandlestickSeries, HistogramSeries, LineSeries, LineStyle, PriceScaleMode, createChart,
} from "../vendor/lightweight-charts/lightweight-charts.js"
import { Ahead } from "../charts/ahead.js"
import { BandView, LinesView } from "../charts/band_series.js"
import { chartOptions, colour, followSize, withColours } from "../charts/colours.js"
import { made } from "../common/elements.js"
import { axisText, compact, decimalsOf, lengthOf, price, rangeName, signed, writingOf } from "../common/format.js"
import { isIntraday } from "../common/times.js"
import { pointsOf } from "./chart_points.js"
import { bandsOf } from "./values.js"

const BARS_BEFORE = 2 // candles shown at first for each bar of the forecast
const CANDLE_PX = 5.5 // of a bar at first, unless fewer candles than three quarters of the forecast had room
const MIN_BAR_PX = 0.01 // so that all bars of the longest file are visible at once
const BY_HAND = ["wheel", "pointermove", "touchmove"] // events that move or zoom the chart
const BY_HAND_MS = 500 // after such an event, a change of the visible range is the user's
const TAG_PX = 18 // of a label at the scale, which covers what is nearer
const MIN_NAMED_PX = 480 // in a narrower chart, names at the scale would cover what is drawn
const LOOKED_AT = 1000 // bars by whose prices those at the scale are rounded
const NO_PANE = 0.001 // of a series without volume
const COLOURS = {
  widest: "widest-edge", outer: "outer-band", inner: "inner-band", paths: "path", past: "past", mean: "mean",
  volume: "volume", meanVolume: "mean",
}
const UNMARKED = { priceLineVisible: false, lastValueVisible: false, lineWidth: 2 }
const MAX_WIDTH = 3 // of the widest range, in heights of all candles; one that is wider would flatten them
const LETTERS = { O: "open", H: "high", L: "low", C: "close" }

export class ForecastChart {
  #series = {}
  #points = new Map()
  #times = []
  #at = null
  #drawn = null
  #shows = "start" // what is fitted to the width: the start, all, or so many bars; null once the user has moved it
  #ahead = [new Ahead("forecast"), new Ahead()] // of the prices, and of the volume
  #line = null
  #tags = [] // the last close's line and label, and the labels where the fan ends
  #legend = made("p", { class: "legend" })
  /** Whether the scale of prices holds the whole of the widest range, even if that flattens the candles. */
  isWhole = false
  /** The ends of the widest range, if the scale cuts it and the paths; else null. */
  cut = null
  /** Called with the price at which the chart is clicked. */
  onClick = () => {}
  /** Called with what is fitted to the width, as `fit` takes it, whenever that changes. */
  onFit = () => {}
  #touchedAt = -Infinity

  /** Calls `onValues` with the bar pointed at, or the last one, this chart, `isPointed`, and where a card fits, `isRight`. */
  constructor(element, onValues = () => {}) {
    this.element = element
    element.before(this.#legend)
    this.chart = createChart(element, {
      ...chartOptions(),
      localization: { timeFormatter: (time) => (this.#points.has(time) ? this.time(this.#points.get(time).text) : "") },
      handleScroll: { vertTouchDrag: false }, // a vertical drag on a touch screen scrolls the page
      handleScale: { axisDoubleClickReset: { time: false, price: true } },
      timeScale: { fixLeftEdge: true, fixRightEdge: true, tickMarkFormatter: axisText, tickMarkMaxCharacterLength: 10, minBarSpacing: MIN_BAR_PX },
    })
    this.onValues = onValues
    const add = (name, kind, pane = 0) => {
      this.#series[name] = typeof kind === "function" ? this.chart.addCustomSeries(kind(), UNMARKED, pane)
        : this.chart.addSeries(kind, UNMARKED, pane)
    }
    add("past", LineSeries)
    this.#series.past.applyOptions({ lineVisible: false, pointMarkersVisible: true, pointMarkersRadius: 3 })
    for (const name of ["widest", "outer", "inner", "paths"]) add(name, () => (/er$/.test(name) ? new BandView() : new LinesView()))
    add("meanCandles", CandlestickSeries)
    add("candles", CandlestickSeries)
    add("mean", LineSeries)
    for (const name of ["mean", "meanCandles"]) this.#series[name].applyOptions({ lastValueVisible: true })
    for (const name of ["widest", "paths"]) this.#series[name].applyOptions({ autoscaleInfoProvider: (own) => (this.cut ? null : own()) })
    add("volume", HistogramSeries, 1)
    add("meanVolume", LineSeries, 1)
    this.chart.panes()[0].setStretchFactor(4)
    this.#ahead.forEach((one, pane) => this.chart.panes()[pane].attachPrimitive(one))
    this.chart.subscribeCrosshairMove(({ time }) => this.#report(time))
    this.chart.subscribeClick(({ point, paneIndex }) => {
      const clicked = point && paneIndex === 0 ? this.#series.candles.coordinateToPrice(point.y) : null
      if (clicked !== null) this.onClick(clicked)
    })
    // The visible range in bars, counted from the first. Tests read these attributes.
    this.chart.timeScale().subscribeVisibleLogicalRangeChange((range) => {
      if (performance.now() - this.#touchedAt < BY_HAND_MS) this.#shows = null
      this.onFit(this.#shows)
      Object.assign(element.dataset, { from: range?.from ?? "", to: range?.to ?? "" })
    })
    element.addEventListener("keydown", (event) => this.#onKey(event))
    for (const name of BY_HAND) {
      element.addEventListener(name, ({ buttons, type }) => {
        if (buttons || type !== "pointermove") this.#touchedAt = performance.now()
      }, { capture: true, passive: true })
    }
    element.addEventListener("dblclick", () => this.fit("start"))
    this.resize = followSize(element, this.chart, () => this.fit(this.#shows))
    withColours(() => this.#paint())
  }

  /** Shows candles, the `forecast` from them (of a result, or null), the `actual` ones after them, and `past` forecasts' ends. */
  show(lookback, actual, forecast, asCandles, past = []) {
    const before = this.#drawn
    this.#drawn = { lookback, actual, forecast, asCandles, past }
    if (!before || subject(before) !== subject(this.#drawn)) this.#shows = "start"
    this.#fill()
    this.#report()
    this.resize()
    this.fit(this.#shows)
  }

  /** Fits to the width: "start", the forecast with some bars before it; all; or so many known bars and what follows. */
  fit(what) {
    this.#shows = what
    this.onFit(what)
    if (!this.#drawn || !what) return
    this.#touchedAt = -Infinity // what follows is not the user's
    const { lookback, forecast } = this.#drawn
    this.chart.timeScale().fitContent()
    if (what === "all" || (!forecast && what === "start")) return
    const [now, horizon] = [lookback.length, forecast?.timestamps.length ?? 0]
    const end = Math.min(this.#times.length, now + (horizon ? 2 * horizon : Infinity))
    const room = this.element.clientWidth / CANDLE_PX - horizon
    const before = what === "start" ? Math.min(BARS_BEFORE * horizon, Math.max(0.75 * horizon, room)) : what
    if (what === "start" && now < Math.min(3 * before, room)) return // nearly all of it
    this.chart.timeScale().setVisibleLogicalRange({ from: Math.max(-1, now - before), to: end + 1 })
  }

  /** Sets the scale of prices: logarithmic or linear. */
  setLog(isLog) {
    const mode = isLog ? PriceScaleMode.Logarithmic : PriceScaleMode.Normal
    this.chart.priceScale("right", 0).applyOptions({ mode })
    this.element.dataset.scale = isLog ? "log" : "linear"
  }

  /** Draws a line at a price, instead of the last one; null draws none. */
  drawLine(value) {
    if (this.#line) this.#series.candles.removePriceLine(this.#line)
    const options = { price: value, color: colour("accent"), lineWidth: 1, axisLabelVisible: true, title: "" }
    this.#line = value === null ? null : this.#series.candles.createPriceLine(options)
  }

  /** A picture of the visible chart below a title, with a small text under it. */
  picture(title, small) {
    const drawn = this.chart.takeScreenshot(true)
    const canvas = document.createElement("canvas")
    const scale = drawn.width / this.element.clientWidth
    const head = Math.round(32 * scale)
    Object.assign(canvas, { width: drawn.width, height: drawn.height + 2 * head })
    const context = canvas.getContext("2d")
    context.fillStyle = colour("ground")
    context.fillRect(0, 0, canvas.width, canvas.height)
    context.fillStyle = colour("text")
    context.font = `${14 * scale}px sans-serif`
    context.fillText(title, 8 * scale, 21 * scale, canvas.width - 16 * scale)
    context.drawImage(drawn, 0, head)
    context.font = `${12 * scale}px sans-serif`
    context.fillText(small, 8 * scale, canvas.height - 11 * scale, canvas.width - 16 * scale)
    return new Promise((resolve) => canvas.toBlob(resolve))
  }

  #fill() {
    const { lookback, actual, forecast, past } = this.#drawn
    const { texts, points } = pointsOf(lookback, actual, forecast, past)
    this.#times = [...points.keys()]
    this.#points = points
    this.#at = null
    Object.assign(this, writingOf(texts, lookback, forecast))
    const onAxis = (values) => { // with no more decimals than its values have
      const most = Math.max(...values.map((value) => decimalsOf(Number(value.toFixed(this.digits)))))
      const [tagged, y] = [this.#tags.map((tag) => tag.options().price), (value) => this.#series.candles.priceToCoordinate(value)]
      return values.map((value) => (tagged.some((one) => Math.abs(y(one) - y(value)) < TAG_PX) ? "" : price(value, most)))
    }
    const closes = lookback.columns.close?.slice(-LOOKED_AT) ?? forecast?.mean.close ?? []
    const span = [Math.min(...closes), Math.max(...closes)]
    const formatter = (value) => this.rounded(...span, value)[2]
    const priceFormat = { type: "custom", formatter, tickmarksFormatter: onAxis, minMove: 10 ** -this.digits }
    for (const [name, one] of Object.entries(this.#series)) {
      one.applyOptions({ priceFormat: /volume/i.test(name) ? { type: "custom", formatter: compact, minMove: 0.01 } : priceFormat })
    }
    this.chart.panes()[1].setStretchFactor(lookback.columns.volume ? 1 : NO_PANE)
    this.chart.applyOptions({ timeScale: { timeVisible: isIntraday(this.#times), secondsVisible: false } })
    this.#paint()
  }

  /** Draws everything in the current colours. */
  #paint() {
    this.chart.applyOptions(chartOptions())
    const { paths, past, candles, meanCandles, mean, volume, meanVolume } = this.#series
    const [up, down, violet] = [colour("up"), colour("down"), colour("mean")]
    const inColours = (rise, fall) => ({
      upColor: rise, downColor: fall, borderUpColor: rise, borderDownColor: fall, wickUpColor: rise, wickDownColor: fall,
    })
    candles.applyOptions(inColours(up, down))
    meanCandles.applyOptions({ ...inColours(violet, violet), upColor: colour("ground") })
    for (const [name, of] of Object.entries(COLOURS)) this.#series[name].applyOptions({ color: colour(of) })
    this.#line?.applyOptions({ color: colour("accent") })
    if (!this.#drawn) return

    const points = [...this.#points].sort(([one], [other]) => one - other)
    const anchor = points.findLast(([, { bar }]) => bar)
    const from = (value) => points.flatMap(([time, point]) => {
      const values = value(point)
      return values === undefined ? [] : { time, ...values }
    })
    const { lookback, asCandles } = this.#drawn
    const hollow = asCandles ? "transparent" : colour("ground") // candles of the mean show through
    candles.setData(from(({ bar, actual }) => bar ?? (actual && { ...actual, color: hollow })))
    const volumeOf = ({ bar, actual }) => (bar ?? actual)?.volume
    volume.setData(from((point) => volumeOf(point) === undefined ? undefined : { value: volumeOf(point) }))
    const hasVolume = lookback.columns.volume !== undefined
    meanVolume.setData(hasVolume ? from(({ mean }) => mean && { value: mean.volume }) : [])

    // Every line of the forecast begins at the last known close.
    const close = anchor?.[1].bar.close
    const begun = (items, first) => items.length && anchor ? [{ time: anchor[0], ...first }, ...items] : items
    this.#tags.forEach((tag) => candles.removePriceLine(tag))
    const isWide = this.element.clientWidth > MIN_NAMED_PX
    const tagged = (price, color, title, further) => candles.createPriceLine({ price, color, title, lineVisible: false, ...further })
    const dotted = { lineVisible: true, lineWidth: 1, lineStyle: LineStyle.Dotted, axisLabelTextColor: colour("on-accent") }
    this.#tags = anchor ? [tagged(close, close < anchor[1].bar.open ? down : up, isWide ? "last close" : "", dotted)] : []
    const line = from((point) => point.mean && { value: middleOf(point) })
    mean.setData(asCandles ? [] : begun(line, { value: close }))
    meanCandles.setData(asCandles ? from((point) => point.mean) : [])
    const levels = this.#drawn.forecast ? Object.keys(this.#drawn.forecast.quantiles) : []
    const bands = bandsOf(levels)
    const ends = bands.outer?.map((level) => this.#drawn.forecast.quantiles[level].close.at(-1)) ?? []
    const name = bands.outer && isWide ? rangeName(...bands.outer) : ""
    this.chart.applyOptions({ layout: { fontSize: isWide ? 12 : 11 } })
    this.#tags.push(...ends.map((end) => tagged(end, colour("outer-edge"), name)))
    mean.applyOptions({ title: isWide && levels.includes("0.5") ? "median" : "" })
    this.cut = this.isWhole ? null : tooWide(this.#drawn, bands.widest)
    for (const name of ["widest", "outer", "inner"]) {
      const [low, high] = bands[name]?.map((level) => levels.indexOf(level)) ?? []
      const band = low === undefined ? [] : from(({ quantiles }) => quantiles && { values: [quantiles[low][1], quantiles[high][1]] })
      this.#series[name].setData(smooth(begun(band, { values: [close, close] })))
    }
    const drawn = from(({ paths }) => paths ? { values: paths } : undefined)
    paths.setData(begun(drawn, { values: (drawn[0]?.values ?? []).map(() => close) }))
    const ending = ({ text }) => this.#drawn.past.findLastIndex(({ timestamps }) => timestamps.at(-1) === text)
    past.setData(from((point) => point.past?.[ending(point)] && { value: point.past[ending(point)]["0.5"] }))
    const now = this.#drawn.forecast ? lookback.length - 1 : null
    const last = this.#drawn.actual.length ? "last bar read" : "now"
    const shown = { now, last, ground: colour("ahead"), line: colour("mean"), text: colour("soft") }
    this.#ahead.forEach((one) => one.show(shown))
  }

  #report(time) {
    this.#at = time === undefined ? null : this.#times.indexOf(time)
    const point = this.#points.get(time ?? this.#times.at(-1))
    if (!point) return
    this.#tell(time ?? this.#times[this.#drawn.lookback.length - 1] ?? this.#times.at(-1), time !== undefined)
    const x = time === undefined ? 0 : this.chart.timeScale().timeToCoordinate(time)
    this.onValues(point, this, { isPointed: time !== undefined, isRight: x < this.element.clientWidth / 2 })
  }

  /** Says at the top what a bar was, or is forecast to be: its change is from the bar before, or from the last known one. */
  #tell(time, isPointed) {
    const { text, bar, actual = bar, mean, past = [], ...point } = this.#points.get(time)
    const last = { bar: { close: this.#drawn.lookback.columns.close?.at(-1) } }
    const before = actual ? this.#points.get(this.#times[this.#times.indexOf(time) - 1]) : last
    const change = 100 * ((actual?.close ?? middleOf({ mean, ...point })) / (before?.bar ?? before?.actual)?.close - 1)
    const medians = past.flatMap((quantiles) => quantiles?.["0.5"] ?? [])
    const [low, high] = [Math.min(...medians), Math.max(...medians)].map((value) => this.price(value))
    const forecast = mean ? [["forecast", this.price(middleOf({ mean, ...point }))]] : []
    const { name, timestamps } = this.#drawn.lookback
    const items = [
      ...(actual ? Object.entries(LETTERS).map(([letter, name]) => [letter, this.price(actual[name])]) : forecast),
      ...(Number.isFinite(change) ? [["", `${signed(change, (part) => price(part, 2))} %`]] : []),
      ...(actual ? forecast : []), ...(medians.length && isPointed ? [["before", low === high ? low : `${low} to ${high}`]] : []),
    ]
    const kind = change < 0 ? "bad" : change > 0 ? "good" : ""
    const length = lengthOf(1, timestamps).replace(/1 × |1 bar/, "")
    const values = items.flatMap(([label, value]) => [`${label} `, made("b", { class: label.length > 1 ? "" : kind }, value), " "])
    const title = [length ? `${name}, ${length}` : name, ...(isPointed ? [this.time(text)] : [])].join(" ")
    this.#legend.replaceChildren(made("strong", {}, title), " ", ...values)
  }

  #onKey(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key]
    const zoom = { "+": 0.8, "=": 0.8, "-": 1.25 }[event.key]
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#times.length) return
    if (move) this.#step(move)
    else if (zoom) this.#zoom(zoom)
    else if (event.key === "0") this.fit("all")
    else if (event.key === "Escape") this.#leave()
    else return
    event.preventDefault()
  }

  #step(bars) {
    const last = this.#times.length - 1
    this.#at = Math.min(last, Math.max(0, (this.#at ?? last) + bars))
    const time = this.#times[this.#at]
    const { bar, actual, mean } = this.#points.get(time)
    const [price, series] = mean ? [mean.close, this.#series.mean] : [(bar ?? actual).close, this.#series.candles]
    const { from, to } = this.chart.timeScale().getVisibleLogicalRange()
    const shift = this.#at < from ? this.#at - from - 1 : this.#at > to ? this.#at - to + 1 : 0
    if (shift) this.#shows = null
    if (shift) this.chart.timeScale().setVisibleLogicalRange({ from: from + shift, to: to + shift })
    this.chart.setCrosshairPosition(price, time, series)
    this.#report(time)
  }

  #leave() {
    this.chart.clearCrosshairPosition()
    this.#report() // the library does not call back here
  }

  #zoom(factor) {
    const { from, to } = this.chart.timeScale().getVisibleLogicalRange()
    this.#shows = null
    const [middle, half] = [(from + to) / 2, Math.max(2, ((to - from) / 2) * factor)]
    this.chart.timeScale().setVisibleLogicalRange({ from: middle - half, to: middle + half })
  }
}

/** The items of a band without the jumps of single paths: means over the bars around each; both ends stay. */
export function smooth(items) {
  const reach = (place) => Math.min(Math.floor(items.length / 12), place, items.length - 1 - place)
  return items.map(({ time, values }, place) => {
    const around = items.slice(place - reach(place), place + reach(place) + 1)
    return { time, values: values.map((_, side) => around.reduce((sum, one) => sum + one.values[side], 0) / around.length) }
  })
}

/** What is forecast of a bar's close: the median, or else the mean. */
const middleOf = ({ mean, quantiles }) => quantiles.find(([level]) => Number(level) === 0.5)?.[1] ?? mean.close

/** The ends of a range between two levels, if it is much higher than the candles before it and in it; else null. */
function tooWide({ lookback, actual, forecast }, levels = []) {
  const ends = (values) => [Math.min(...values), Math.max(...values)]
  const seen = [lookback.slice(-BARS_BEFORE * (forecast?.timestamps.length ?? 0)), actual]
  const [low, high] = ends(seen.flatMap(({ columns }) => [...columns.low ?? [], ...columns.high ?? []]))
  const [least, most] = ends(levels.flatMap((level) => forecast.quantiles[level].close))
  return most - least > MAX_WIDTH * (high - low) ? [least, most] : null
}

/** What a chart is about, as text: while it stays the same, the user's view of it stays too. */
function subject({ lookback, actual, forecast }) {
  const { name, length, timestamps } = lookback
  return [name, length, timestamps[0], actual.length, Boolean(forecast)].join(" ")
}
