/** The report of a backtest, drawn: scores, how far its ranges can be trusted, the portfolio, and the worst moments. */
import { barChart } from "../charts/bar_chart.js"
import { StepChart } from "../charts/step_chart.js"
import { LineStyle } from "../vendor/lightweight-charts/lightweight-charts.js"
import { byId, made, offer, showText, whole } from "../common/elements.js"
import { bars, count, figure, mapValues, percent, price, share, signed, timesOf } from "../common/format.js"
import {
  COLOURS, NAIVE, comparison, drawAgainstBaseline, scoresTable, verdictBox, verdictHead, verdictLines,
} from "../common/scores.js"
import { Candles } from "../forecast/candle_file.js"
import { ForecastChart } from "../forecast/forecast_chart.js"
import { inWords as inPageWords } from "../common/texts.js"
import { promotion } from "../service/promotion.js"

const MAX_MARKED = 12 // points of a line; more would hide it
const LEVELS = ["0.5", "0.8", "0.9"]
const SHARES = { type: "custom", formatter: share, minMove: 0.001 }
const BY_BAR = {
  error: ["Error", ({ crps_scaled: values }) => values],
  median: ["Miss of the median, in usual moves", ({ mase: values }) => values],
  direction: ["Right direction", ({ direction_accuracy: values }) => values, SHARES],
  width: ["Width of the 80 % range, in usual moves", ({ width_scaled: values }) => values?.["0.8"]],
}
const NAIVE_PORTFOLIOS = { momentum: "by past return", random: "at random" }
const PORTFOLIO = [
  ["Rank IC", ({ rank_ic: values }) => values.at(-1), figure, null, "rankic"],
  ["Top above bottom", ({ hit_rate: hits }) => hits, share],
  ["Return a period", ({ return: gained }) => gained, share],
  ["Before costs", ({ return_before_costs: gained }) => gained, share],
  ["Turnover", ({ turnover }) => turnover, figure, null, "turnover"],
  ["Deepest fall", ({ max_drawdown: fall }) => fall, share],
]

/** Draws a report; `id` is that of its backtest, and `file` names what it was made on, if this browser knows. */
export function showReport(report, id, file) {
  const { models, naive, asked, num_windows: windows, instruments, left_out: leftOut, model_info: info = {} } = report
  const names = Object.keys(models)
  const of = instruments.length === 1 ? instruments[0].name : `${count(instruments.length)} instruments`
  byId("tested-title").replaceChildren(...whole(`${names.join(" and ")} on ${file ?? of}`))
  showText(byId("tested-what"), `${count(windows)} moments of ${of}: ${bars(asked.lookback)} read, ` +
    `${count(asked.horizon)} forecast.${leftOut.windows ? ` ${count(leftOut.windows)} of the forecasts failed.` : ""}`)
  const heads = names.map((name) => verdictHead(models[name].verdict))
  const isSame = names.length > 1 && new Set(heads.map(({ textContent: text }) => text)).size === 1
  byId("verdicts").replaceChildren(isSame ? verdictBox(heads[0].className, heads[0]) : "", ...names.map((name) => (
    made("div", {}, made("h3", {}, ...whole(name)), ...verdictLines(models[name].verdict, isSame ? "" : undefined),
      ...(isVersion(info[name]) ? [promotion(`${info[name].id}@${info[name].revision}`, id)] : [])))))
  const direct = names.length > 1 && models[names[1]].verdict.find((line) => line.includes(` than ${names[0]} (`) || line === `The same as ${names[0]}.`)
  if (direct) byId("verdicts").prepend(made("p", {}, ...whole(`${names[1]}: ${inPageWords(direct)}`)))
  byId("backtest-scores").replaceChildren(scoresTable(models, naive))
  const simple = naive.bootstrap ? "bootstrap" : "last_value" // of a worker of 0.1.0
  byId("not-tested").hidden = true
  byId("tested").hidden = false // charts take the width of what is shown
  byId("against").replaceChildren()
  drawAgainstBaseline(byId("against"), models)
  showReliability(models)
  offer(byId("horizon-score"), Object.entries(BY_BAR).map(([value, [text]]) => [value, text]))
  const show = () => showByBar(models, naive[simple], NAIVE[simple])
  byId("horizon-score").onchange = show
  show()
  showPortfolio(report.portfolio)
  showWorstWindows(report.worst_windows, asked.horizon)
}

/** The report with the models of another one, which are told apart if both have them. */
export function together(one, other) {
  const named = (models) => Object.fromEntries(Object.entries(models).map(([name, values]) => (
    [name in one.models ? `${name}, the other backtest` : name, values])))
  const [own, further] = [one.portfolio, other.portfolio]
  const portfolio = own && further ? { ...own, models: { ...own.models, ...named(further.models) } } : own
  return { ...one, models: { ...one.models, ...named(other.models) }, portfolio }
}

/** Whether a model is a registered version: those of the hub have hashes as revisions, or none. */
const isVersion = (info) => /^\d{1,9}$/.test(info?.revision ?? "")

const linesOf = (models, valuesOf) => Object.entries(models).map(([text, of], index) => (
  { text, colour: COLOURS[index % COLOURS.length], values: valuesOf(of) ?? [] }))

function showReliability(models) {
  const box = byId("reliability")
  box.replaceChildren()
  const inside = linesOf(models, ({ scores: { coverage } }) => LEVELS.map((level) => coverage[level]))
  const gap = (part, place) => Math.round(1000 * (part - LEVELS[place])) / 10
  const gaps = inside.map((line) => ({ ...line, values: line.values.map(gap) }))
  const due = { text: "as it should be", value: 0, values: LEVELS.map(Number) }
  const title = "Do the ranges hold what they say? Closes inside, in points above or below it"
  barChart(box, title, LEVELS.map((level) => `${percent(level)} range`), gaps, due,
    (points) => signed(points, (size) => price(size, 1)), inWords(title, [...inside, due], share))
  const places = "Where closes fell among the paths: 10 % belong in each tenth"
  const pit = linesOf(models, ({ scores }) => scores.pit.map((part) => 100 * part))
  const tenths = pit[0].values.map((_, tenth) => count(tenth + 1))
  barChart(box, places, tenths, pit, { text: "10 % in each, as it should be", value: 10 },
    (part) => price(part, 1), inWords(places, pit, (part) => share(part / 100)))
}

function showByBar(models, baseline, title) {
  const [name, valuesOf, format] = BY_BAR[byId("horizon-score").value]
  byId("by-horizon").replaceChildren()
  draw("by-horizon", `${name}, by bar ahead`, [...linesOf(models, ({ by_horizon: by }) => valuesOf(by)),
    { text: title, colour: "soft", values: valuesOf(baseline.by_horizon) ?? [] }], format)
  const inside = linesOf(models, ({ by_horizon: { coverage } }) => coverage["0.8"])
  draw("by-horizon", "Closes inside the 80 % range, by bar ahead", [...inside,
    { text: "80 %, as it should be", colour: "soft", values: inside[0].values.map(() => 0.8) }], SHARES)
}

function showPortfolio(portfolio) {
  byId("portfolio").hidden = !portfolio
  if (!portfolio) return
  const { models, naive, top, cost_bps: costs, num_periods: periods, equity_times: times } = portfolio
  const simple = Object.entries(naive).map(([name, values]) => [NAIVE_PORTFOLIOS[name] ?? name, values])
  const how = `Long the ${count(top)} with the highest forecast return, short the ${count(top)} with the lowest, ` +
    `for ${count(periods)} periods, after costs of ${percent(costs / 10_000)} of each trade.`
  byId("portfolio-table").replaceChildren(comparison("Portfolio", how, PORTFOLIO, [...Object.entries(models), ...simple]))
  byId("portfolio-charts").replaceChildren()
  const lines = (valuesOf) => [...linesOf(models, valuesOf), ...simple.map(([text, of], index) => (
    { text, colour: ["soft", "control"][index % 2], values: valuesOf(of) }))]
  draw("portfolio-charts", "How well instruments are ordered (rank IC), by bar ahead", lines((of) => of.rank_ic))
  const at = times.map((_, period) => period)
  const time = timesOf(times)
  const equity = lines((of) => of.equity).map((line) => ({ ...line, at }))
  draw("portfolio-charts", "What 1 unit of money became after costs, by period", equity, undefined, `${time(times[0])} to ${time(times.at(-1))}`)
}

/** Draws one chart with a line for each forecaster; `at` has the places of its values, else they count from 1. */
function draw(parent, title, lines, format, text = "") {
  const drawn = lines.map(({ text: name, colour, values }) => ({ text: name, colour, ...(colour === "soft" ? { lineStyle: LineStyle.Dashed }
    : { pointMarkersVisible: values.length <= MAX_MARKED }) }))
  const chart = new StepChart(byId(parent), title, drawn, format, { "data-x": text ? "period" : "bar" })
  lines.forEach(({ values, at }, index) => chart.series[index].setData(
    values.map((value, place) => ({ time: at?.[place] ?? place + 1, ...(value === null ? {} : { value }) }))))
  chart.describe(text)
  chart.figure.setAttribute("aria-label", inWords(title, lines, format?.formatter ?? figure))
}

/** A chart for screen readers: where each line begins and ends. */
function inWords(title, lines, written) {
  const ends = (values) => `${written(values[0] ?? null)} to ${written(values.at(-1) ?? null)}`
  return `${title}. ${lines.map(({ text, values }) => `${text}: ${ends(values)}`).join("; ")}`
}

/** Offers the windows of a report. One of 0.1.0 has none. */
function showWorstWindows(windows = [], horizon) {
  const box = byId("worst-windows")
  byId("worst").hidden = !windows.length
  if (!windows.length) return box.replaceChildren()
  const charts = Object.keys(windows[0].quantiles).map((model) => new WindowChart(model))
  const buttons = windows.map((window, index) => {
    const cut = window.timestamps.length - horizon
    const text = `${window.instrument}, ${timesOf(window.timestamps)(window.timestamps[cut])}`
    const error = `${text}: ${figure(window.error)} usual moves`
    return made("button", { type: "button", "aria-pressed": "false", onclick: () => choose(index) }, error)
  })
  const choose = (chosen) => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)))
    charts.forEach((chart) => chart.show(windows[chosen], horizon))
  }
  box.replaceChildren(made("div", { class: "buttons", role: "group", "aria-label": "Worst moments" }, ...buttons),
    made("div", { class: "compared" }, ...charts.map(({ part }) => part)))
  return choose(0)
}

class WindowChart {
  constructor(model) {
    this.model = model
    const described = { role: "application", "aria-roledescription": "chart", "aria-label": model }
    this.element = made("div", { class: "chart loss", tabindex: "0", ...described })
    this.part = made("div", { class: "drawn" }, made("h4", {}, model), this.element)
    this.chart = new ForecastChart(this.element)
  }

  show({ instrument, timestamps, open, high, low, close, quantiles }, horizon) {
    const candles = new Candles(instrument, timestamps, { open, high, low, close })
    const levels = quantiles[this.model]
    const forecast = {
      timestamps: timestamps.slice(-horizon), mean: { close: levels["0.5"] }, paths: null,
      quantiles: mapValues(levels, (close) => ({ close })),
    }
    this.chart.show(candles.slice(0, -horizon), candles.slice(-horizon), forecast, false)
    this.chart.fit(Math.max(24, 3 * horizon)) // as many bars before, so that the fan of a short one has room
    this.element.setAttribute("aria-label", `${this.model} on ${instrument}: ${timestamps.length - horizon} bars, ` +
      `the forecast of ${horizon}, and what followed`)
  }
}
