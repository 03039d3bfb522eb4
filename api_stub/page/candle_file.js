/** Candles from a CSV file as people keep them: columns in any order and case, more of them than needed. */

export const PRICES = ["open", "high", "low", "close"]
const OPTIONAL = ["volume", "amount"]
const TIMES = ["timestamps", "timestamp", "datetime", "date", "time"]
const MAX_BYTES = 64 * 2 ** 20
const MAX_SHOWN_CHARS = 40

/** A file that cannot be used; the message says where and why. */
export class FileProblem extends Error {}

/** Bars of one instrument: `timestamps` as they stand in the file, `columns` of numbers, `lines` in the file. */
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

/** Reads a File; throws FileProblem. */
export async function readCandles(file) {
  if (file.size > MAX_BYTES) {
    throw new FileProblem(`${file.name} has ${Math.ceil(file.size / 2 ** 20)} MiB; at most 64 are read here.`)
  }
  return parseCandles(await file.text(), file.name)
}

/** The bars in a text; throws FileProblem. */
export function parseCandles(text, name) {
  const [header, ...rows] = records(text.replace(/^\uFEFF/, ""), name)
  if (!header) throw new FileProblem(`${name} is empty.`)
  const titles = header.cells.map((cell) => cell.toLowerCase())
  const at = Object.fromEntries(titles.map((title, index) => [title, index]))
  const has = `the file has ${shown(header.cells.join(", "))}`
  const timeTitle = TIMES.find((title) => title in at)
  if (!timeTitle) {
    throw new FileProblem(`${name} has no column with the times, named one of ${TIMES.join(", ")}; ${has}.`)
  }
  const missing = PRICES.filter((title) => !(title in at))
  if (missing.length) throw new FileProblem(`${name} has no column ${missing.join(", ")}; ${has}.`)
  if (!rows.length) throw new FileProblem(`${name} has a header and no rows.`)

  const isSplit = timeTitle === "date" && "time" in at
  const used = [...PRICES, ...OPTIONAL.filter((title) => title in at)]
  const columns = Object.fromEntries(used.map((title) => [title, []]))
  const timestamps = []
  for (const { cells, line } of rows) {
    const time = cells[at[timeTitle]] ?? ""
    const stamp = isSplit ? `${time} ${cells[at.time] ?? ""}` : time
    if (!isTime(stamp)) throw cellProblem(name, line, timeTitle, stamp, "a time like 2024-06-18 11:15:00")
    timestamps.push(stamp)
    for (const title of used) {
      const cell = cells[at[title]] ?? ""
      const number = cell === "" ? NaN : Number(cell)
      if (!Number.isFinite(number)) throw cellProblem(name, line, title, cell, "a number")
      columns[title].push(number)
    }
  }
  return new Candles(name, timestamps, columns, rows.map(({ line }) => line))
}

function isTime(text) {
  return /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?$/.test(text)
}

function cellProblem(name, line, title, cell, wanted) {
  const there = cell === "" ? "nothing" : `“${shown(cell)}”`
  return new FileProblem(`${name}, line ${line}, column ${title}: there is ${there} where ${wanted} is needed.`)
}

function shown(text) {
  return text.length > MAX_SHOWN_CHARS ? `${text.slice(0, MAX_SHOWN_CHARS)}…` : text
}

/** Rows that are not empty, each with the line it begins in (RFC 4180, with quotes). */
function* records(text, name) {
  const cellAndEnd = /[ \t]*(?:"((?:[^"]|"")*)"[ \t]*|([^",\r\n]*))(,|\r?\n|\r|$)/y
  let cells = []
  let line = 1
  let start = 1
  while (cellAndEnd.lastIndex < text.length) {
    const match = cellAndEnd.exec(text)
    if (!match) throw new FileProblem(`${name}, line ${line}: there is a quotation mark where none belongs.`)
    const [, quoted, plain, end] = match
    const cell = quoted?.replaceAll('""', '"') ?? plain
    cells.push(cell.trim())
    line += cell.split("\n").length - 1
    if (end === ",") continue
    line += 1
    if (cells.some((text) => text !== "")) yield { cells, line: start }
    cells = []
    start = line
  }
  if (cells.some((text) => text !== "")) yield { cells, line: start }
}
