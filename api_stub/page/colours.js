/** The page's colours for charts: the style sheet's, told anew when the system turns dark or light. */

const dark = matchMedia("(prefers-color-scheme: dark)")

/** One of the style sheet's, such as "mean". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
}

/** Calls `draw` now and whenever the colours change. */
export function withColours(draw) {
  dark.addEventListener("change", draw)
  draw()
}

/** What every chart has in common. The library's logo would need an inline style: its link is in the footer. */
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
