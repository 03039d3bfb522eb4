/** Numbers and times as texts: the one place that decides how they look. They are written as in the user's region. */
import { clockOf, isIntraday, offsetOf } from "./times.js"

const MAX_DIGITS = 8 // numbers with more have been computed, for example for dividends
export const NONE = "–" // where there is no number

/** The page's language with the region of the browser's, such as "en-DE": words in English, signs as there. */
const LOCALE = `en-${new Intl.Locale(navigator.language || "en-US").maximize().region ?? "US"}`

const formats = new Map()

function written(number, options) {
  const key = JSON.stringify(options)
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat(LOCALE, options))
  return formats.get(key).format(number)
}

const fixed = (digits) => ({ minimumFractionDigits: digits, maximumFractionDigits: digits })

/** An object with the same names, whose values are those that `valueOf` makes of each. */
export const mapValues = (object, valueOf) => (
  Object.fromEntries(Object.entries(object).map(([name, value]) => [name, valueOf(value)])))

/** A whole number with separators, such as "16,384". */
export const count = (number) => written(number, { maximumFractionDigits: 0 })

/** So many things, such as "1 job" or "2 jobs". */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`

export const bars = (number) => plural(number, "bar")

/** A price with so many decimal places; "" for undefined. */
export const price = (value, digits) => value === undefined ? "" : written(value, fixed(digits))

/** A share from 0 to 1 in percent, such as "66.7 %". */
export const share = (part) => part === null ? NONE : `${written(100 * part, fixed(1))} %`

/** A share in whole percents, such as "67 %". */
export const roundly = (part) => percent(Math.round(100 * part) / 100)

/** A quantile's level, such as "10 %". */
export const percent = (level) => `${written(100 * Number(level), { maximumFractionDigits: 1 })} %`

/** The range between two quantiles by the share of paths in it, such as "80 % range". */
export const rangeName = (low, high) => `${percent(high - low)} range`

/** A number without a unit, such as an error or a loss, with three digits that count. */
export const figure = (value) => value === null ? NONE : written(value, { maximumSignificantDigits: 3 })

/** An error in prices, with two digits that count. */
export const rough = (value) => written(value, { minimumSignificantDigits: 2, maximumSignificantDigits: 2 })

/** A difference with its sign. */
export const signed = (value, textOf = figure) => `${value < 0 ? "−" : "+"}${textOf(Math.abs(value))}`

/** A large number in few characters, such as "1.24M". */
export const compact = (value) => written(value, { maximumSignificantDigits: 3, notation: "compact" })

/** Bytes in MiB, such as "2.0". */
export const mebibytes = (bytes) => written(bytes / 2 ** 20, fixed(1))

/** Such as "480 ms", "12 s", "5 min", "3 h" or "2 d". */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`
  }
  return `${written(seconds, { maximumFractionDigits: seconds < 10 ? 1 : 0 })} s`
}

/** How long something still takes; "" for null. */
export const timeLeft = (seconds) => seconds === null ? "" : `about ${duration(seconds)} left`

/** The decimal places that a number is written with. */
export function decimalsOf(number) {
  const [digits, exponent = 0] = String(number).split("e")
  return Math.max(0, (digits.split(".")[1] ?? "").length - exponent)
}

/** The decimal places of a file's prices; null if there are none, or more than prices are quoted with. */
export function digitsOf({ open = [], high = [], low = [], close = [] }) {
  const digits = [open, high, low, close].flat().reduce((most, value) => Math.max(most, decimalsOf(value)), -1)
  return digits < 0 || digits > MAX_DIGITS ? null : digits
}

/** Decimal places that show a ten-thousandth of a price, at least two. */
export const digitsFor = (value) => Math.min(10, Math.max(2, Math.ceil(4 - Math.log10(Math.abs(value) || 1))))

const DAY = { year: "numeric", month: "short", day: "numeric" }
/** A date in few words, for times that are near each other. */
export const NEAR = { month: "short", day: "numeric" }
const CLOCK = { hour: "2-digit", minute: "2-digit" }
// By the chart library's TickMarkType, from years to seconds.
const AXIS = [{ year: "numeric" }, { month: "short", year: "numeric" }, NEAR, CLOCK, CLOCK]
  .map((parts) => new Intl.DateTimeFormat(LOCALE, { ...parts, timeZone: "UTC" }))

/** A label of a chart's time axis. */
export const axisText = (time, tickMarkType) => AXIS[tickMarkType].format(time * 1000)

/**
 * A function that writes the timestamps of a series on the clock of its file, and the date as `day`. It names the zone:
 * `timezone`, or what the timestamps say, or none for "". Bars of a day or more have no time of day.
 */
export function timesOf(stamps, timezone = null, day = DAY) {
  const clocks = stamps.map(clockOf)
  const hasTime = isIntraday(clocks) || (clocks.length === 1 && clocks[0] % 86400 !== 0)
  const second = clocks.some((time) => time % 60) ? { second: "2-digit" } : {}
  const options = { weekday: "short", ...day, ...(hasTime ? { ...CLOCK, ...second } : {}), timeZone: "UTC" }
  const format = new Intl.DateTimeFormat(LOCALE, options)
  return (stamp) => {
    const zone = hasTime ? zoneOf(stamp, timezone) : ""
    return `${format.format(1000 * clockOf(stamp))}${zone ? ` ${zone}` : ""}`
  }
}

/** The zone of a timestamp, such as "America/New_York" or "UTC+5:30"; "" if it is not known. */
export function zoneOf(stamp, timezone) {
  const offset = offsetOf(stamp)
  if (timezone !== null || offset === null) return timezone ?? ""
  const minutes = Math.abs(offset) / 60
  const rest = minutes % 60 ? `:${String(Math.floor(minutes % 60)).padStart(2, "0")}` : ""
  return offset ? `UTC${offset < 0 ? "−" : "+"}${Math.floor(minutes / 60)}${rest}` : "UTC"
}

const LOOKED_AT = 1000 // bars by which it is decided how times and prices are written

/**
 * How a series is written: `time` and `shortTime` of a timestamp, the `zone` of intraday bars, whose `clock` that is;
 * `digits` of a price, `price` with as many, `rounded` prices: the ends of a range and others, as its width is worth.
 */
export function writingOf(stamps, { columns, timezone }, forecast) {
  const recent = stamps.slice(-LOOKED_AT)
  const last = mapValues(columns, (values) => values.slice(-LOOKED_AT))
  const digits = digitsOf(last) ?? digitsFor(forecast?.mean.close[0] ?? 1)
  const hasTime = isIntraday(recent.map(clockOf))
  const zone = hasTime ? zoneOf(recent[0], timezone) : ""
  return {
    digits,
    time: timesOf(recent, timezone),
    shortTime: timesOf(recent, "", NEAR),
    zone,
    clock: zone.replace(/^.+\/(.+)$/, "$1 time").replaceAll("_", " ") || (hasTime ? "(file time)" : ""),
    price: (value) => price(value, digits),
    rounded: (low, high, ...others) => {
      const worth = Math.max(0, Math.ceil(2 - Math.log10(high - low || 1)))
      return [low, high, ...others].map((value) => price(value, Math.min(digits, worth)))
    },
  }
}

const UNITS = [[604_800, "week"], [86_400, "day"], [3600, "hour"], [60, "minute"]]

/** How long so many bars take, such as "48 hours", "48 × 5 minutes", or "48 bars" if bars have no common length. */
export function lengthOf(number, stamps) {
  const clocks = stamps.slice(-100).map(clockOf)
  const steps = clocks.slice(1).map((clock, index) => clock - clocks[index]).sort((one, other) => one - other)
  const step = steps[Math.floor(steps.length / 2)]
  const [size, unit] = UNITS.find(([seconds]) => step >= seconds && step % seconds === 0) ?? []
  if (!size || steps.filter((one) => one === step).length < steps.length / 2) return bars(number)
  const times = step / size
  return times === 1 ? plural(number, unit) : `${count(number)} × ${count(times)} ${unit}s`
}

const OWN_TIME = new Intl.DateTimeFormat(LOCALE, { day: "numeric", month: "short", ...CLOCK })

/** A moment on the user's own clock. */
export const ownTime = (date) => OWN_TIME.format(date)
