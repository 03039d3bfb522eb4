/** A forecast as files: CSV, JSON, and the chart as PNG. */

/** One row per bar: its time, the columns of the mean, the close of each quantile, and what must be said of the model. */
export function asCsv({ timestamps, mean, quantiles }, caution) {
  const columns = { timestamps, ...mean }
  for (const [level, { close }] of Object.entries(quantiles)) columns[`close_${level}`] = close
  if (caution) columns.caution = timestamps.map(() => `"${caution}"`)
  const rows = timestamps.map((_, index) => Object.values(columns).map((values) => values[index]))
  return [Object.keys(columns), ...rows].map((cells) => `${cells.join(",")}\n`).join("")
}

/** Saves a Blob as a file through the browser. */
export function save(blob, name) {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000) // it has been read by then
}
