/** A price that the user draws, and the chance that it is touched, counted from the paths in the browser. */
import { byId, numberIn, showText } from "../common/elements.js"
import { count, share } from "../common/format.js"

/** How many of all `paths` touch a price, `hits`, and the place of the bar by which `half` of those have, or null. */
export function touches({ close, high = close, low = close }, price, last) {
  const isAbove = price >= last
  const isHit = (value) => (isAbove ? value >= price : value <= price)
  const firsts = (isAbove ? high : low).map((path) => path.findIndex(isHit))
  const hits = firsts.filter((place) => place >= 0).sort((one, other) => one - other)
  return { hits: hits.length, paths: firsts.length, half: hits.length ? hits[Math.floor((hits.length - 1) / 2)] : null }
}

export class PriceLine {
  #shown = null

  constructor(chart) {
    this.chart = chart
    byId("price-line").addEventListener("input", () => this.#show())
    byId("draw-line").addEventListener("click", () => this.#arm(byId("draw-line").ariaPressed !== "true"))
    chart.onClick = (price) => {
      if (byId("draw-line").ariaPressed !== "true") return
      byId("price-line").value = price.toFixed(chart.digits)
      this.#arm(false)
      this.#show()
    }
  }

  /** Reads the line on another forecast; null if there is none. */
  onForecast(series, last) {
    this.#shown = series && { series, last: last ?? series.mean.close[0] }
    byId("price-line").step = 10 ** -Math.min(this.chart.digits, 6)
    this.#show()
  }

  #arm(isArmed) {
    byId("draw-line").ariaPressed = String(isArmed)
    byId("chart").classList.toggle("armed", isArmed)
  }

  #show() {
    const price = numberIn("price-line")
    this.chart.drawLine(price)
    showText(byId("touched"), price !== null && this.#shown && this.#reading(price))
  }

  #reading(price) {
    const { series, last } = this.#shown
    const named = this.chart.price(price)
    if (!series.paths) return `The chance of touching ${named} needs the simulated paths. Turn them on and forecast again.`
    const { hits, paths, half } = touches(series.paths, price, last)
    const of = `of ${count(paths)} simulated paths`
    const end = this.chart.shortTime(series.timestamps.at(-1))
    if (!hits) return `${named} is touched by none ${of} before ${end}.`
    const middle = this.chart.shortTime(series.timestamps[half])
    return `${named} is touched by ${share(hits / paths)} ${of} before ${end}, by half of those before ${middle}.`
  }
}
