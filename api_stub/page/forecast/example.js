/** The first screen: a forecast of the sample, made beforehand. Both are files of the page. */

import { Candles } from "./candle_file.js"

/** The page's own sample, which is plain enough to be read here. */
export async function readSample() {
  const text = await (await fetch("sample.csv")).text()
  const [titles, ...rows] = text.trim().split("\n").map((line) => line.split(","))
  const [[, timestamps], ...columns] = titles.map((title, place) => [title, rows.map((row) => row[place])])
  const numbers = columns.map(([title, cells]) => [title, cells.map(Number)])
  return new Candles("sample.csv", timestamps, Object.fromEntries(numbers))
}

/** What a ForecastView shows: the example's result with its candles. */
export async function readExample() {
  const [candles, result] = await Promise.all([readSample(), fetch("forecast/example.json").then((answer) => answer.json())])
  const end = candles.timestamps.indexOf(result.series[0].timestamps[0])
  return { lookback: candles.slice(0, end), actual: candles.slice(end), result, isExample: true }
}
