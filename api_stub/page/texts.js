/** Numbers, durations and errors as texts. */

export function count(number) {
  return number.toLocaleString("en-GB")
}

export function bars(number) {
  return `${count(number)} ${number === 1 ? "bar" : "bars"}`
}

/** Such as "480 ms", "12 s", "5 min", "3 h" or "2 d". */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`
  }
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`
}

/** A quantile's level, such as "10 %". */
export function percent(level) {
  return `${Math.round(Number(level) * 1000) / 10} %`
}

/** An error as one line: its message and code. */
export function reason(error) {
  return error.code ? `${inWords(error.message)} (${error.code})` : error.message
}

/** A message about a job, with the page's own words in place of the fields of a job. */
export function inWords(text) {
  return text
    .replace(/give (the future times|them,) or a longer lookback/, "use a longer lookback")
    .replace(/\b(series\.\d+|sampling|output)\./g, "")
    .replace(/\bsample_count\b/g, "samples")
    .replace(/\bpred_len\b/g, "horizon")
}

/** The decimal places that a number is written with. */
export function decimalsOf(number) {
  const [digits, exponent = 0] = String(number).split("e")
  return Math.max(0, (digits.split(".")[1] ?? "").length - exponent)
}
