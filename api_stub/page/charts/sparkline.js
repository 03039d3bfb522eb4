/** A small line of values, without axes. */
import { byId } from "../common/elements.js"

const WIDTH = 160
const HEIGHT = 28

/** A line through values between `least` and `most`, as SVG with a text for screen readers; null for fewer than two. */
export function sparkline(values, text, least, most) {
  if (values.length < 2) return null
  const [wide, high] = [WIDTH / (values.length - 1), (HEIGHT - 4) / (most - least || 1)]
  const place = (value, index) => [index * wide, HEIGHT - 2 - (value - least) * high].map((at) => at.toFixed(1)).join()
  const line = values.map(place)
  const svg = byId("sparkline").content.firstElementChild.cloneNode(true)
  svg.setAttribute("aria-label", text)
  svg.firstChild.setAttribute("points", line.join(" "))
  svg.lastChild.setAttribute("points", [`0,${HEIGHT}`, ...line, `${WIDTH},${HEIGHT}`].join(" "))
  return svg
}
