/** Timestamps as in the file, and as the ascending seconds that the chart needs. */

const PARTS = new RegExp(
  String.raw`^(\d{4})-(\d\d)-(\d\d)` +
  String.raw`(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?$`,
)
const DAY = 86400

/**
 * The seconds of each timestamp. The chart shows the wall clock as written, as the model does. If that goes
 * back, as when clocks change, it shows instants.
 */
export function chartTimes(texts) {
  const walls = texts.map((text) => seconds(text, false))
  return isAscending(walls) ? walls : texts.map((text) => seconds(text, true))
}

export function isAscending(times) {
  return times.every((time, index) => index === 0 || time > times[index - 1])
}

/** Whether bars are shorter than a day, so that the chart must show the time of day. */
export function isIntraday(times) {
  return times.some((time) => time % DAY !== times[0] % DAY)
}

const AXIS_TEXTS = [ // by the library's TickMarkType, from years to seconds
  { year: "numeric" },
  { month: "short", year: "numeric" },
  { day: "numeric", month: "short" },
  { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" },
  { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" },
].map((parts) => new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: "UTC" }))

/** A label of the time axis. Each names its day, because the axis may begin at any. */
export function axisText(time, tickMarkType) {
  return AXIS_TEXTS[tickMarkType].format(time * 1000).replace(",", "")
}

function seconds(text, isInstant) {
  const [, year, month, day, hour = 0, minute = 0, second = 0, fraction = 0, zone] = PARTS.exec(text)
  const date = new Date(0)
  date.setUTCFullYear(year, month - 1, day)
  const wall = date / 1000 + hour * 3600 + minute * 60 + Number(`${second}.${fraction}`)
  return isInstant ? wall - offset(zone) : wall
}

function offset(zone) {
  if (!zone || zone === "Z") return 0
  const [hours, minutes = 0, rest = 0] = zone.slice(1).replaceAll(":", "").match(/../g)
  const east = hours * 3600 + minutes * 60 + Number(rest)
  return zone[0] === "-" ? -east : east
}
