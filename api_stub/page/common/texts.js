/** Errors, devices, and what the service says, in the words of the page. */
import { said } from "./elements.js"

/** An error in words: those of the page for a code whose message is meant for people who run the service. */
export const words = ({ code, message }) => said(code) ?? (code ? inWords(message) : message)

/** An error as one line: its words, and its code, by which the service's operator finds more. */
export const reason = (error) => error.code ? `${words(error)} (${error.code})` : words(error)

/** What to do about an error that would come again, because it is in what was sent; "" if the same job may succeed. */
export function nextStep({ code, field, details }) {
  const [place] = Object.entries(details ?? {}).find(([name]) => ["line", "row"].includes(name)) ?? []
  if (place) return `Correct ${place} ${details[place]}, then choose the file again.`
  if (/^TRAINING_DATA|^series/.test(`${field ?? code}`)) return "Correct the file, then choose it again."
  const passes = field ? code === "MODEL_CAPACITY" : code !== "TRAINING_DIVERGED"
  return passes ? "" : "Change it in the form, then send it."
}

const IN_PLACE = [ // of what the service's messages say
  [/^.*requested but.*Falling back to CPU\.$/, "No graphics card is ready for this, so the processor computed it."],
  [/^Native engine not used.*$/, "The service computes slower than it could on its processor."],
  [/was trained on lookbacks of (.+) bars, but this one has (\d+):/, "learned to read $1 bars, and has read $2:"],
  [/give (the future times|them,) or a longer lookback/, "read more bars"],
  [/^Quantiles of/, "Ranges of"],
  [/\bsample path/g, "simulated path"],
  [/a drift-free bootstrap of the lookback/g, "the baseline"],
  [/a random walk of the lookback's returns/g, "a random walk with recent moves"],
  [/the lookback's trend/g, "the recent trend"],
  [/\b(the \d+ %) interval\b/g, "$1 range"],
  [/\bwindow(s?)(?= (is|are) few\b)|(?<=\btoo few )window(s)\b/g, "past moment$1$3"],
  [/; drop_bad_rows=true leaves such rows out$/, ", or tick “Leave out rows that cannot be read”"],
  [/; missing=ffill gives such rows .*$/, ", or choose what becomes of “Candles without prices”"],
  [/, or name the column: column=\w+:TITLE$/, ", or give the “Names of your columns”"],
  [/ \((id_column|column|date_format|decimal)\)$|: name in `backtest` one of this version.*$/, ""],
  [/\b(series\.\d+|sampling|output)\./g, ""],
  [/\bsample_count\b/g, "simulated paths"],
  [/\bpred_len\b/g, "bars ahead"],
]

/** A message of the service, with the page's own words in place of those for people who write jobs. */
export const inWords = (text) => IN_PLACE.reduce((shown, [theirs, ours]) => shown.replace(theirs, ours), text)

/** A device, such as "processor (CPU)" or "NVIDIA H100 (cuda:0)". */
export function deviceName(device, description = null) {
  if (device === "cpu") return "processor (CPU)"
  return `${description?.name ?? "graphics card"} (${device})`
}

/** A job's state in words. */
export const stateName = (state) => ({ queued: "waiting", expired: "no longer kept" })[state] ?? state
