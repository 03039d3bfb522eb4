/** Timestamps as in the file, and as the ascending seconds that the chart needs. */

const PARTS = // year, month, day, hour, minute, second, fraction, zone
  /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?$/
const DAY = 86400

/** The seconds of each timestamp on the clock as written, as the model reads it; of instants if clocks go back. */
export function chartTimes(texts) {
  const walls = texts.map(clockOf)
  const isAscending = walls.every((wall, index) => !index || wall > walls[index - 1])
  return isAscending ? walls : texts.map((text) => clockOf(text) - (offsetOf(text) ?? 0))
}

/** Whether bars are shorter than a day, so that the time of day must be shown. */
export const isIntraday = (times) => times.some((time) => time % DAY !== times[0] % DAY)

/** The seconds that the clock of a timestamp shows, as if it were UTC. */
export function clockOf(text) {
  const [, year, month, day, hour = 0, minute = 0, second = 0, fraction = 0] = PARTS.exec(text)
  const date = new Date(0)
  date.setUTCFullYear(year, month - 1, day)
  return date / 1000 + hour * 3600 + minute * 60 + Number(`${second}.${fraction}`)
}

/** How many seconds the clock of a timestamp is ahead of UTC; null if it does not say. */
export function offsetOf(text) {
  const zone = PARTS.exec(text)[8]
  if (!zone) return null
  if (zone === "Z") return 0
  const [hours, minutes = 0, rest = 0] = zone.slice(1).replaceAll(":", "").match(/../g)
  const east = hours * 3600 + minutes * 60 + Number(rest)
  return zone[0] === "-" ? -east : east
}
