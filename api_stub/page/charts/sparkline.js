/** A small line of values, without axes. */

const SVG = "http://www.w3.org/2000/svg"
const WIDTH = 160
const HEIGHT = 28

/** A line through values between `least` and `most`, as SVG with a text for screen readers; null for fewer than two values. */
export function sparkline(values, text, least, most) {
  if (values.length < 2) return null
  const [wide, high] = [WIDTH / (values.length - 1), (HEIGHT - 4) / (most - least || 1)]
  const line = values.map((value, index) => `${(index * wide).toFixed(1)},${(HEIGHT - 2 - (value - least) * high).toFixed(1)}`)
  const svg = document.createElementNS(SVG, "svg")
  const given = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": text, class: "sparkline" }
  for (const [name, value] of Object.entries(given)) svg.setAttribute(name, value)
  const area = [`0,${HEIGHT}`, ...line, `${WIDTH},${HEIGHT}`]
  for (const [tag, points] of [["polyline", line], ["polygon", area]]) {
    svg.append(document.createElementNS(SVG, tag))
    svg.lastChild.setAttribute("points", points.join(" "))
  }
  return svg
}
