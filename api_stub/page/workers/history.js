/** The load and speed of each worker and each pool since the page was opened, as small lines. */

const MAX_POINTS = 150 // ten minutes
const WIDTH = 160
const HEIGHT = 28
const histories = new Map()

/** Notes readings, `{load, speed}`, by the name of a worker or a pool; those that are gone are forgotten. */
export function note(readings) {
  for (const name of histories.keys()) if (!readings.has(name)) histories.delete(name)
  for (const [name, reading] of readings) {
    histories.set(name, [...(histories.get(name) ?? []), reading].slice(-MAX_POINTS))
  }
}

/** A line of the `load` or `speed` of a name, as SVG; null before there are two readings. */
export function sparkline(name, of) {
  const values = (histories.get(name) ?? []).map((point) => point[of])
  if (values.length < 2) return null
  const most = of === "load" ? 1 : Math.max(...values, 1e-9)
  const line = values.map((value, index) => (
    `${((index * WIDTH) / (values.length - 1)).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`
  ))
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`)
  svg.setAttribute("preserveAspectRatio", "none")
  svg.setAttribute("role", "img")
  svg.setAttribute("aria-label", `${of} since this page was opened`)
  svg.classList.add("sparkline")
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "polyline")
  drawn.setAttribute("points", line.join(" "))
  svg.append(drawn)
  return svg
}
