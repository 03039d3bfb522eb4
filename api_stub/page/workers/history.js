/** The load and speed of each worker since the page was opened, as small lines. */

const MAX_POINTS = 150 // ten minutes
const WIDTH = 160
const HEIGHT = 28
const histories = new Map()

/** Notes a reading of all workers; those that are gone are forgotten. */
export function note(workers) {
  for (const node of histories.keys()) {
    if (!workers.some((worker) => worker.node === node)) histories.delete(node)
  }
  for (const { node, sequences_running: running, slots, bars_per_s: speed } of workers) {
    if (!slots) continue
    const points = histories.get(node) ?? []
    points.push({ load: (running ?? 0) / slots, speed: speed ?? 0 })
    histories.set(node, points.slice(-MAX_POINTS))
  }
}

/** A line of a worker's `load` or `speed`, as SVG; null before there are two readings. */
export function sparkline(node, name, text) {
  const values = (histories.get(node) ?? []).map((point) => point[name])
  if (values.length < 2) return null
  const most = name === "load" ? 1 : Math.max(...values, 1e-9)
  const line = values.map((value, index) => (
    `${((index * WIDTH) / (values.length - 1)).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`
  ))
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`)
  svg.setAttribute("role", "img")
  svg.setAttribute("aria-label", text)
  svg.classList.add("sparkline")
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "polyline")
  drawn.setAttribute("points", line.join(" "))
  svg.append(drawn)
  return svg
}
