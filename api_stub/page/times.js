/** Timestamps as the file has them, and as the chart wants them: ascending seconds. */

const PARTS = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d(?:\.\d+)?))?)?(Z|[+-]\d\d:\d\d)?$/

/**
 * Seconds of each timestamp. The chart shows the wall clock as written, which is what the model sees; only
 * where that goes back, as when clocks change, the instants.
 */
export function chartTimes(texts) {
  const walls = texts.map((text) => seconds(text, false))
  return isAscending(walls) ? walls : texts.map((text) => seconds(text, true))
}

export function isAscending(times) {
  return times.every((time, index) => index === 0 || time > times[index - 1])
}

/** Whether a bar is shorter than a day, so that the time of day is worth showing. */
export function isIntraday(times) {
  return times.some((time) => time % 86400 !== times[0] % 86400)
}

function seconds(text, isInstant) {
  const [, year, month, day, hour = "0", minute = "0", second = "0", zone] = PARTS.exec(text) ?? []
  const wall = Date.UTC(year, month - 1, day, hour, minute) / 1000 + Number(second)
  if (!isInstant || !zone || zone === "Z") return wall
  const [hours, minutes] = zone.slice(1).split(":").map(Number)
  return wall - (zone[0] === "-" ? -1 : 1) * (hours * 3600 + minutes * 60)
}
