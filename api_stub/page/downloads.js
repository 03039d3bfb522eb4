/** A forecast as files: CSV, JSON, and the chart as PNG. */

const COLUMNS = ["open", "high", "low", "close", "volume", "amount"]

/** One row a bar: its time, the mean's columns, and each quantile's close. */
export function asCsv({ timestamps, mean, quantiles }) {
  const levels = Object.keys(quantiles)
  const header = ["timestamps", ...COLUMNS, ...levels.map((level) => `close_${level}`)]
  const rows = timestamps.map((stamp, index) => [
    stamp, ...COLUMNS.map((name) => mean[name][index]), ...levels.map((level) => quantiles[level].close[index]),
  ])
  return [header, ...rows].map((cells) => `${cells.join(",")}\n`).join("")
}

/** Has the browser save a Blob under a name. */
export function save(blob, name) {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000) // by then it is read
}
