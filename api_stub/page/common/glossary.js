/** The words that stay, explained: on hover, to screen readers, and in the list at the end of the page. */

import { byId, made } from "./elements.js"

const TERMS = {
  bar: ["Bar", "One candle: open, high, low and close of one period, such as five minutes or a day."],
  calibration: ["Adjusted ranges", "The ranges are made wider or narrower, by how often earlier forecasts of this model held the price."],
  chances: ["Chances", "What you ask of the simulated paths: a column, a level, and when. “at end” means the last bar, “by 24” " +
    "the 24th bar or any before it. Separate several by commas."],
  device: ["Computed on", "The part of a computer that does the work. A graphics card (GPU) is faster than a processor (CPU)."],
  costs: ["Costs", "What each trade of the portfolio costs, in hundredths of a percent of its worth (basis points)."],
  drawdown: ["Deepest fall", "How far the close falls from a high on the way to a later low, on average over the simulated paths."],
  epoch: ["Passes over the data", "How often training goes through all of your candles. More passes fit them closer, and from some " +
    "point on make the model worse on new ones."],
  heldout: ["Bars kept back", "The last bars of your file, which the model does not see. They are drawn over the forecast, and score it."],
  horizon: ["Bars ahead", "How many bars are forecast."],
  learningrate: ["Learning rate", "How far each step of training changes the model. Too high a rate makes it forget what it knew."],
  lookback: ["Bars to read", "How many of the latest bars the model reads before it forecasts. Empty: as many as suits the model."],
  median: ["Median", "Half of the simulated paths are above it, half below."],
  paths: ["Simulated paths", "The model draws this many possible futures. Ranges and chances are counted from them: more paths, " +
    "steadier numbers, longer waits."],
  pinball: ["Error", "The average miss of the whole forecast range (CRPS, the mean pinball loss), in usual moves of one bar. Lower is better."],
  range: ["Range", "The middle of the simulated paths. A good model's 80 % range holds the price 8 times in 10."],
  rankic: ["Rank IC", "How well the forecast has put the instruments in order: 1 is their actual order, 0 is chance, −1 the reverse."],
  seed: ["Seed", "A number that fixes the chance in the simulation. The same seed and settings give the same forecast."],
  stride: ["Bars between", "A past moment every so many bars, counted back from the end: instruments then share them, which a portfolio needs. " +
    "Empty: evenly spread."],
  temperature: ["Temperature", "How adventurous the simulated paths are. 1 is as the model learned; below 1 the ranges get too narrow."],
  timezone: ["Time zone", "The zone whose clock the times in your file follow. The forecast's times follow it too, also when clocks change."],
  tokenizer: ["Passes for the tokenizer", "The tokenizer is the part of a model that turns candles into the symbols it reads. Trained " +
    "on one file, it unlearns all other markets and spoils the model. Leave 0 unless you train on many files."],
  top: ["Instruments a side", "How many instruments the portfolio buys, and how many it sells. It needs three or more in the file."],
  topp: ["Top p", "Leaves out the least likely moves. 1 keeps all; below 1 the ranges get too narrow."],
  turnover: ["Turnover", "How much is bought and sold in a period, in shares of the portfolio's worth."],
  volatility: ["Volatility", "How much the price moves from bar to bar, summed over the forecast."],
  windows: ["Past moments", "At so many moments of the past, evenly spread, the model forecasts as if it did not know what followed."],
  worker: ["Worker", "A program on some computer that computes forecasts, or trains and backtests models."],
}

/** Explains every label with `data-term` in a part of the page. */
export function explainTerms(part) {
  for (const label of part.querySelectorAll("[data-term]")) {
    const name = label.dataset.term
    label.title = TERMS[name][1]
    const field = label.control ?? label
    field.title = TERMS[name][1]
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} term-${name}`.trim())
  }
}

/** Lists all terms at the end of the page. */
export function fillGlossary() {
  byId("glossary").replaceChildren(...Object.entries(TERMS).sort(([, [one]], [, [other]]) => one.localeCompare(other))
    .map(([name, [word, text]]) => made("div", {}, made("dt", {}, word), made("dd", { id: `term-${name}` }, text))))
}
