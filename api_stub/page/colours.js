/** Chart colours from the style sheet. They change when the system turns dark or light. */

const dark = matchMedia("(prefers-color-scheme: dark)")

/** A colour of the style sheet, such as "mean". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
}

/** Calls `draw` now and whenever the colours change. */
export function withColours(draw) {
  dark.addEventListener("change", draw)
  draw()
}

/** Options of every chart. The library's logo would need an inline style; the footer links to it instead. */
export function chartOptions() {
  return {
    layout: {
      background: { color: colour("ground") },
      textColor: colour("text"),
      panes: { separatorColor: colour("line"), separatorHoverColor: colour("grid") },
      attributionLogo: false,
    },
    grid: { vertLines: { color: colour("grid") }, horzLines: { color: colour("grid") } },
    rightPriceScale: { borderColor: colour("line") },
    timeScale: { borderColor: colour("line") },
  }
}
