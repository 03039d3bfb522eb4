/** The theme, and what charts share: colours from the style sheet, which change with it, options, and size. */
import { byId, made } from "../common/elements.js"
import { remember } from "../common/storage.js"

const dark = matchMedia("(prefers-color-scheme: dark)")
const root = document.documentElement
const drawn = new Set()
const probe = made("span", { hidden: "" })
document.body.append(probe)

/** Lets the user choose the theme: the system's, light or dark. */
export function offerThemes() {
  const select = byId("theme")
  select.value = root.dataset.theme
  select.addEventListener("change", () => {
    root.dataset.theme = select.value
    remember("theme", select.value)
    drawn.forEach((draw) => draw())
  })
}

/** A colour of the style sheet, such as "mean", as the browser resolves it in the current theme. */
export function colour(name) {
  probe.style.color = `var(--${name})`
  return getComputedStyle(probe).color
}

/** Calls `draw` now and whenever the colours change. */
export function withColours(draw) {
  drawn.add(draw)
  dark.addEventListener("change", draw)
  draw()
}

/** Options of every chart. The library's logo would need an inline style; the footer links to it instead. */
export function chartOptions() {
  return {
    layout: {
      background: { color: colour("ground") },
      textColor: colour("text"),
      fontFamily: getComputedStyle(document.body).fontFamily,
      panes: { separatorColor: colour("line"), separatorHoverColor: colour("grid") },
      attributionLogo: false,
    },
    grid: { vertLines: { color: colour("grid") }, horzLines: { color: colour("grid") } },
    rightPriceScale: { borderColor: colour("line"), entireTextOnly: true, scaleMargins: { top: 0.1, bottom: 0.06 } },
    timeScale: { borderColor: colour("line"), allowBoldLabels: false },
  }
}

/** Resizes a chart with its element, then calls `fit`. Returns a function that does so before the observer does. */
export function followSize(element, chart, fit) {
  let size = ""
  const resize = () => {
    const { clientWidth: width, clientHeight: height } = element
    if (!width || size === `${width} ${height}`) return
    size = `${width} ${height}`
    chart.resize(width, height)
    fit()
  }
  new ResizeObserver(resize).observe(element)
  return resize
}
