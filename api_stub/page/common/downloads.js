/** A forecast as files: CSV, JSON, and the chart as PNG. */

const COLUMNS = ["open", "high", "low", "close", "volume", "amount"]

/** One row per bar: its time, the columns of the mean, the close of each quantile, and what must be said of the model. */
export function asCsv({ timestamps, mean, quantiles }, caution) {
  const levels = Object.keys(quantiles)
  const header = ["timestamps", ...COLUMNS, ...levels.map((level) => `close_${level}`), ...(caution ? ["caution"] : [])]
  const rows = timestamps.map((stamp, index) => [stamp, ...COLUMNS.map((name) => mean[name][index]), ...levels.map((level) => quantiles[level].close[index]), ...(caution ? [`"${caution}"`] : [])])
  return [header, ...rows].map((cells) => `${cells.join(",")}\n`).join("")
}

/** Saves a Blob as a file through the browser. */
export function save(blob, name) {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000) // it has been read by then
}
