/** The moments at which a backtest missed most: one is chosen, and drawn as each model forecast it. */
import { byId, made } from "../common/elements.js"
import { figure, timesOf } from "../common/format.js"
import { Candles } from "../forecast/candle_file.js"
import { ForecastChart } from "../forecast/forecast_chart.js"

/** Offers the windows of a report. One of 0.1.0 has none. */
export function showWorstWindows(windows = [], horizon) {
  const box = byId("worst-windows")
  byId("worst").hidden = !windows.length
  if (!windows.length) return box.replaceChildren()
  const charts = Object.keys(windows[0].quantiles).map((model) => new WindowChart(model))
  const buttons = windows.map((window, index) => {
    const cut = window.timestamps.length - horizon
    const text = `${window.instrument}, ${timesOf(window.timestamps)(window.timestamps[cut])}`
    return made("button", { type: "button", "aria-pressed": "false", onclick: () => choose(index) }, `${text}: ${figure(window.error)} usual moves`)
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
    this.element = made("div", { class: "chart loss", tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": model })
    this.part = made("div", { class: "drawn" }, made("h4", {}, model), this.element)
    this.chart = new ForecastChart(this.element)
  }

  show({ instrument, timestamps, open, high, low, close, quantiles }, horizon) {
    const candles = new Candles(instrument, timestamps, { open, high, low, close })
    const levels = quantiles[this.model]
    const forecast = {
      timestamps: timestamps.slice(-horizon), mean: { close: levels["0.5"] }, paths: null,
      quantiles: Object.fromEntries(Object.entries(levels).map(([level, values]) => [level, { close: values }])),
    }
    this.chart.show(candles.slice(0, -horizon), candles.slice(-horizon), forecast, false)
    this.chart.fit(Math.max(24, 3 * horizon)) // as many bars before, so that the fan of a short one has room
    this.element.setAttribute("aria-label", `${this.model} on ${instrument}: ${timestamps.length - horizon} bars, ` +
      `the forecast of ${horizon}, and what followed`)
  }
}
