/** The load and speed of each worker and each pool since the page was opened, as small lines. */

import { sparkline } from "../charts/sparkline.js"

const MAX_POINTS = 150 // ten minutes
const histories = new Map()

/** Notes readings, `{load, speed}`, by the name of a worker or a pool; those that are gone are forgotten. */
export function note(readings) {
  for (const name of histories.keys()) if (!readings.has(name)) histories.delete(name)
  for (const [name, reading] of readings) {
    histories.set(name, [...(histories.get(name) ?? []), reading].slice(-MAX_POINTS))
  }
}

/** A line of the `load` or `speed` of a name; null before there are two readings. */
export function lineOf(name, of) {
  const values = (histories.get(name) ?? []).map((point) => point[of])
  return sparkline(values, `${of} since this page was opened`, 0, of === "load" ? 1 : Math.max(...values, 1e-9))
}
