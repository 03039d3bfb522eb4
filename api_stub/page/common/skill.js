/** Which backtests found no skill, by the candles they were made on. This browser remembers them. */
import { recall, remember } from "./storage.js"

const MAX_NOTES = 100

/** A hash of a file's times and closes, as text. */
export function hashOf({ timestamps, columns }) {
  let [high, low] = [0xdeadbeef, 0x41c6ce57]
  for (const letter of `${timestamps.join()} ${columns.close.join()}`) {
    const code = letter.charCodeAt(0)
    high = Math.imul(high ^ code, 2654435761)
    low = Math.imul(low ^ code, 1597334677)
  }
  return `${(high >>> 0).toString(36)}${(low >>> 0).toString(36)}`
}

/** Keeps the first sentence of each model's verdict on the candles of a hash. */
export function keepVerdicts(hash, models) {
  const notes = recall("verdicts", []).filter((note) => note.hash !== hash || !(note.model in models))
  const found = Object.entries(models).map(([model, { verdict }]) => ({ hash, model, sentence: verdict[0] }))
  remember("verdicts", [...found, ...notes].slice(0, MAX_NOTES))
}

/** The sentence by which a backtest of a model on the same candles found no skill; null if none did. */
export function noSkill(hash, { id, revision = null }) {
  const names = [id, `${id}@${revision}`]
  const note = recall("verdicts", []).find((one) => one.hash === hash && names.includes(one.model))
  return note && !note.sentence.startsWith("Better") ? note.sentence : null
}
