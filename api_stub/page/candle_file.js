/** Candles from a CSV file, read as kronos_model/bars/files reads it. Tests check both with the same files. */

import { byId, showText } from "./elements.js"
import { bars } from "./texts.js"
import { hasOffset, isTime } from "./times.js"

export const PRICES = ["open", "high", "low", "close"]
const OPTIONAL = ["volume", "amount"]
const TIMES = ["timestamps", "timestamp", "datetime", "date", "time"]
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/
const REPLACED = "\uFFFD" // browsers replace bytes that are not UTF-8 by this
const MAX_BYTES = 64 * 2 ** 20
const MAX_SHOWN_CHARS = 300

/** A file that cannot be used; the message says where and why. */
export class FileProblem extends Error {}

/** Bars of one instrument: `timestamps` as in the file, `columns` of numbers, and their `lines` in the file. */
export class Candles {
  constructor(name, timestamps, columns, lines) {
    Object.assign(this, { name, timestamps, columns, lines })
  }

  get length() {
    return this.timestamps.length
  }

  slice(start, end) {
    const columns = Object.fromEntries(
      Object.entries(this.columns).map(([name, values]) => [name, values.slice(start, end)]),
    )
    return new Candles(this.name, this.timestamps.slice(start, end), columns, this.lines.slice(start, end))
  }
}

/** The file that was chosen or dropped anywhere on the page, or the sample. */
export class CandleFile {
  /** Calls `onCandles` with the bars of each file that is opened. */
  constructor(onCandles) {
    this.onCandles = onCandles
    byId("file").addEventListener("change", () => this.#open(byId("file").files))
    for (const name of ["dragover", "dragleave", "drop"]) addEventListener(name, (event) => this.#onDrag(event))
  }

  openSample() {
    return this.#show(async () => parseCandles(await (await fetch("sample.csv")).text(), "sample.csv"))
  }

  /** A dropped file is opened. By default, the browser would leave the page for it. */
  #onDrag(event) {
    const { type, target, dataTransfer: { types, files } } = event
    if (!types.includes("Files")) return
    event.preventDefault()
    byId("drop").classList.toggle("over", type === "dragover")
    if (type === "drop" && !byId("finetune").contains(target)) this.#open(files)
  }

  async #open(files) {
    await this.#show(() => {
      if (files.length > 1) throw new FileProblem("Open one file: a forecast is made from one file at a time.")
      return readCandles(files[0])
    })
    byId("file").value = "" // so that the same file can be chosen again once it is corrected
  }

  async #show(read) {
    showText(byId("file-problem"), null)
    try {
      const candles = await read()
      showText(byId("file-name"), `${candles.name}: ${bars(candles.length)}, ` +
        `${candles.timestamps[0]} to ${candles.timestamps.at(-1)}`)
      byId("file-help").hidden = true
      this.onCandles(candles)
    } catch (error) {
      const known = error instanceof FileProblem ? error.message : `The file cannot be read: ${error.message}`
      showText(byId("file-problem"), known)
      byId("file-problem").scrollIntoView({ block: "nearest" }) // the file may have been dropped elsewhere
    }
  }
}

/** Reads a File; throws FileProblem. */
export async function readCandles(file) {
  if (file.size > MAX_BYTES) {
    throw new FileProblem(`${file.name} has ${Math.ceil(file.size / 2 ** 20)} MiB; at most 64 are read here`)
  }
  return parseCandles(await file.text(), file.name)
}

/** The bars in a text; throws FileProblem. */
export function parseCandles(text, name) {
  const records = recordsOf(text.replace(/^\uFEFF/, ""), name)
  const header = records.next().value
  if (!header) throw new FileProblem(`${name} is empty`)
  const titles = header.cells
  const at = placesOf(header, name)
  const [long, rows] = rowsOf([...records], titles.length, Object.values(at))
  const odd = rows.find(({ cells }) => Object.values(at).some((place) => cells[place]?.includes(REPLACED)))
  if (odd) throw encodingProblem(name, odd)
  if (!rows.length && !long) throw new FileProblem(`${name} has a header and no rows`)
  const stamps = stampsOf(rows, at, name)
  const columns = columnsOf(rows, at)
  rows.forEach(({ cells, line }, row) => {
    if (long && long.line < line) throw lengthProblem(name, long)
    const wrong = Object.keys(columns).find((title) => Number.isNaN(columns[title][row]))
    if (!isTime(stamps[row])) {
      const cell = [cells[at.timestamps], cells[at.time]].filter(Boolean).join(" ")
      throw cellProblem(name, line, titles[at.timestamps], cell, "a time like 2024-06-18 11:15:00")
    }
    if (wrong) throw cellProblem(name, line, titles[at[wrong]], cells[at[wrong]] ?? "", "a number")
  })
  if (long) throw lengthProblem(name, long)
  return new Candles(name, stamps, columns, rows.map(({ line }) => line))
}

/** The index of each used column. If date and time of day are two columns, `timestamps` and `time`. */
function placesOf(header, name) {
  const titles = header.cells
  try {
    return knownPlacesOf(titles, name)
  } catch (error) {
    throw titles.some((title) => title.includes(REPLACED)) ? encodingProblem(name, header) : error
  }
}

function knownPlacesOf(titles, name) {
  const has = `it has ${shown(titles.join(", "))}`
  if (titles.length === 1 && /[;\t|]/.test(titles[0])) {
    throw new FileProblem(
      `${name} has one column, '${shown(titles[0])}': write the file with commas between its cells`,
    )
  }
  const placeOf = (title) => {
    const spelt = [...new Set(titles.filter((each) => each.toLowerCase() === title))]
    if (spelt.length < 2) return titles.indexOf(spelt[0])
    throw new FileProblem(`${name} has the columns ${spelt.map(shown).join(" and ")}: keep one of them`)
  }
  const times = TIMES.filter((title) => placeOf(title) >= 0)
  if (!times.length) {
    throw new FileProblem(
      `${name} has no column with the times; ${has}: call the column of times ${TIMES.slice(0, -1).join(", ")} or ${TIMES.at(-1)}`,
    )
  }
  const at = { timestamps: placeOf(times[0]) }
  if (times[0] === "date" && times[1] === "time") at.time = placeOf("time")
  for (const title of [...PRICES, ...OPTIONAL]) if (placeOf(title) >= 0) at[title] = placeOf(title)
  const missing = PRICES.filter((title) => !(title in at))
  if (!missing.length) return at
  throw new FileProblem(
    `${name} has no column ${missing.join(" and no column ")}; ${has}: rename the columns that hold them`,
  )
}

/** The first row with more cells than the header, and the rows in which a used cell is not empty. */
function rowsOf(records, width, places) {
  const isLong = ({ cells }) => cells.slice(width).some((cell) => cell !== "")
  const isBlank = ({ cells }) => places.every((place) => !cells[place])
  return [records.find(isLong), records.filter((record) => !isLong(record) && !isBlank(record))]
}

function stampsOf(rows, at, name) {
  const stamps = at.time === undefined ? rows.map(({ cells }) => cells[at.timestamps] ?? "") : joined(rows, at, name)
  const known = rows.map(({ line }, row) => ({ line, text: stamps[row] })).filter(({ text }) => isTime(text))
  const odd = known.find(({ text }) => hasOffset(text) !== hasOffset(known[0].text))
  if (!odd) return stamps
  throw new FileProblem(
    `${name}, line ${odd.line}: the file has times with an offset and times without one: write all of them alike`,
  )
}

/** Dates joined with times of day, "" if a time is missing. A midnight after the date is dropped. */
function joined(rows, at, name) {
  const parts = rows.map(({ cells }) => [
    (cells[at.timestamps] ?? "").replace(/[T ]00:00(:00([.,]0+)?)?$/, ""), cells[at.time] ?? "",
  ])
  const isApart = parts.every(([date]) => !/^\d{4}-\d\d-\d\d[T ]\d/.test(date))
  if (isApart && (!parts.length || parts.some(([, time]) => /^\d\d:\d\d/.test(time)))) {
    return parts.map(([date, time]) => (time === "" ? "" : `${date} ${time}`))
  }
  throw new FileProblem(
    `${name} has two columns that could be the times, date and time: rename the right one to timestamps`,
  )
}

/** Numbers by column, NaN for a cell that is no number. Volume or amount is left out if it has no number. */
function columnsOf(rows, at) {
  const columns = {}
  for (const title of [...PRICES, ...OPTIONAL].filter((title) => title in at)) {
    const numbers = rows.map(({ cells }) => numberOf(cells[at[title]] ?? ""))
    if (PRICES.includes(title) || !numbers.every(Number.isNaN)) columns[title] = numbers
  }
  return columns
}

function numberOf(cell) {
  const number = NUMBER.test(cell) ? Number(cell) : NaN
  return Number.isFinite(number) ? number : NaN
}

function cellProblem(name, line, title, cell, wanted) {
  const there = cell === "" ? "nothing" : `'${shown(cell)}'`
  return new FileProblem(
    `${name}, line ${line}, column ${shown(title)}: there is ${there} where ${wanted} is needed`,
  )
}

function encodingProblem(name, { line }) {
  return new FileProblem(`${name}, line ${line}: the text is not UTF-8: save the file as UTF-8`)
}

function lengthProblem(name, { cells, line }) {
  return new FileProblem(`${name}, line ${line}: there are ${cells.length} cells, more than in the header`)
}

function shown(text) {
  return text.slice(0, MAX_SHOWN_CHARS).replace(/(?! )[\p{C}\p{Z}]/gu, "�")
}

/** Yields rows that are not blank, each with the line that it begins in (RFC 4180, with quotes). */
function* recordsOf(text, name) {
  const cellAndEnd = /[ \t]*(?:"((?:[^"]|"")*)"[ \t]*|([^", \t\r\n][^,\r\n]*)?)(,|\r?\n|\r|$)/y
  let cells = []
  let line = 1
  let start = 1
  while (cellAndEnd.lastIndex < text.length) {
    const match = cellAndEnd.exec(text)
    if (!match) throw new FileProblem(`${name}, line ${start}: a quotation mark stands where none belongs`)
    const [, quoted, plain = "", end] = match
    const cell = quoted?.replaceAll('""', '"') ?? plain
    cells.push(cell.trim())
    line += cell.split(/\r\n|\r|\n/).length - 1
    if (end === ",") continue
    line += 1
    if (cells.length > 1 || cells[0] !== "") yield { cells, line: start }
    cells = []
    start = line
  }
  if (cells.length) yield { cells, line: start }
}
