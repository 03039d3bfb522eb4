/** The file of candles: chosen, dropped anywhere on the page, or the sample. The API reads it, as every file. */
import { ApiError, Unreachable, upload } from "../service/api.js"
import { byId, offer, showText } from "../common/elements.js"
import { bars, count, mapValues, timesOf } from "../common/format.js"
import { Reading } from "../common/reading.js"
import { showChanged } from "../common/settings.js"
import { reason } from "../common/texts.js"
import { currentView, showView } from "../common/views.js"

const MAX_BARS = 16_384 // lookback and held-out bars

/** A valid id for a series, from the file's name: without its suffix, printable, at most 200 characters. */
export function idOf(name) {
  const stem = name.replace(/\.(csv|csv\.gz|parquet|pq)$/i, "")
  return [...stem.replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, "_")].slice(0, 200).join("")
}

/** Bars of one instrument: `timestamps` on the clock of `timezone`, if it is known, and `columns` of numbers. */
export class Candles {
  constructor(name, timestamps, columns, timezone = null) {
    Object.assign(this, { name, timestamps, columns, timezone })
  }

  get length() { return this.timestamps.length }

  slice(start, end) {
    const columns = mapValues(this.columns, (values) => values.slice(start, end))
    return new Candles(this.name, this.timestamps.slice(start, end), columns, this.timezone)
  }
}

export class CandleFile {
  #file = null
  #asked = "" // how the open file was read
  #shown = null // what the open file is, which stays open if the next one is refused
  reading = new Reading()
  #reading = 0 // counts, so that only the last file's answer is shown

  /** Calls `onCandles` with the bars of each file that is opened. */
  constructor(onCandles) {
    this.onCandles = onCandles
    const onChoice = ({ target }) => {
      this.#open([...target.files])
      target.value = "" // so that the same file can be chosen again once it is corrected
    }
    for (const id of ["file", "backtest-file"]) byId(id).addEventListener("change", onChoice)
    for (const id of ["file-form", "instrument"]) {
      byId(id).addEventListener("change", ({ target }) => {
        if (target.id === "id-column") byId("instrument").value = ""
        if (this.#file) this.#open([this.#file])
      })
    }
    for (const id of ["open-own", "open-here"]) byId(id).addEventListener("click", () => byId("file").click())
    addEventListener("paste", (event) => this.#onPaste(event))
    for (const name of ["dragover", "dragleave", "drop"]) addEventListener(name, (event) => this.#onDrag(event))
  }

  /** Reads the open file once more, if the form says to read it in another way. */
  reread() {
    showChanged("file-form")
    if (this.#file && this.#asked !== String(this.#query(this.#file.name))) this.#open([this.#file])
  }

  /** A file may be dropped anywhere. By default, the browser would leave the page for it. */
  #onDrag(event) {
    const { type, target, dataTransfer: { types, files } } = event
    if (!types.includes("Files")) return
    event.preventDefault()
    for (const part of document.querySelectorAll(".drop, .upload")) part.classList.toggle("over", type === "dragover")
    if (type === "drop" && !byId("finetune").contains(target)) this.#take(files)
  }

  /** Opens a file where the user is, if that is of use there. */
  #take(files) {
    if (currentView() !== "backtest") showView("forecast")
    this.#open(files)
  }

  /** Opens candles that the page has read itself. */
  openCandles(candles) {
    this.#file = null
    this.#reading += 1
    this.#show(candles, { dropped: {}, warnings: [] })
  }

  /** Rows that are pasted outside of a field, such as from a spreadsheet, are a file. */
  #onPaste({ target, clipboardData }) {
    const text = clipboardData.getData("text/plain")
    const isTyping = target instanceof Element && target.closest("input, select")
    if (isTyping || !(clipboardData.files.length || text.includes("\n"))) return
    this.#take(clipboardData.files.length ? clipboardData.files : [new File([text], "pasted.csv")])
  }

  async #open([file, ...others]) {
    if (!file) return
    if (file !== this.#file) byId("instrument").value = "" // of another file
    this.#file = file
    const reading = ++this.#reading
    byId("file-explanation").hidden = true
    showText(byId("file-problem"), null)
    showText(byId("file-name"), `Reading ${file.name}…`)
    try {
      if (others.length) throw new ApiError("Open one file: a forecast is made from one file at a time.")
      this.#asked = String(this.#query(file.name))
      const answer = await upload(`candles?${this.#asked}`, file)
      if (reading !== this.#reading) return
      const { id, timestamps, timezone, ...columns } = answer.series
      const isOne = answer.instruments.length === 0
      byId("instruments").hidden = isOne
      offer(byId("instrument"), answer.instruments.map((name) => [name, name]))
      if (!isOne) byId("instrument").value = id
      this.#show(new Candles(isOne ? file.name : id, timestamps, columns, timezone), answer)
    } catch (error) {
      if (reading !== this.#reading) return
      showView("forecast") // which has the fields that say how to read it
      showText(byId("file-name"), this.#shown)
      this.reading.onRefusal(error)
      showText(byId("file-problem"), reason(error), error instanceof Unreachable ? () => this.#open([file]) : null)
      byId("file-problem").scrollIntoView({ block: "nearest" }) // the file may have been dropped elsewhere
    }
  }

  #query(name) {
    const instrument = byId("instrument").value
    return this.reading.query({ name: name.slice(-200), max_bars: MAX_BARS, ...(instrument ? { instrument } : {}) })
  }

  #show(candles, { dropped, warnings, explanation = [] }) {
    const left = Object.entries(dropped).map(([why, number]) => `${count(number)} ${why.replaceAll("_", " ")}`)
    const time = timesOf(candles.timestamps, candles.timezone)
    const span = `${time(candles.timestamps[0])} to ${time(candles.timestamps.at(-1))}`
    const notes = [...(left.length ? [`Rows left out: ${left.join(", ")}`] : []), ...warnings]
    this.#shown = [`${candles.name}: ${bars(candles.length)}, ${span}`, ...notes].join(". ")
    showText(byId("file-name"), this.#shown)
    showText(byId("file-problem"), null)
    byId("file-explanation").hidden = !explanation.length
    byId("file-explanation").querySelector("p").textContent = explanation.join("\n")
    byId("file-help").hidden = true
    this.onCandles(candles)
  }
}
