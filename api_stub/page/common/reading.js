/** How to read a file of candles: the same fields in each form that takes one. */
import { byId, reveal } from "./elements.js"

export class Reading {
  /** Adds the fields to the part of a form with the id `file-form` after this prefix, which their ids have, too. */
  constructor(prefix = "") {
    const copy = byId("reading").content.cloneNode(true)
    for (const field of copy.querySelectorAll("[id]")) field.id = prefix + field.id
    for (const label of copy.querySelectorAll("[for]")) label.htmlFor = prefix + label.htmlFor
    this.part = byId(`${prefix}file-form`)
    this.part.append(copy)
    this.fields = [...this.part.querySelectorAll("[name]")]
  }

  /** The options, as a job has them. What is not given is left out. */
  get options() {
    const value = ({ type, checked, value: text }) => (type === "checkbox" ? checked : text)
    const given = this.fields.map((field) => [field.name, value(field)]).filter(([, text]) => text)
    const { columns = "", ...options } = Object.fromEntries(given)
    const pairOf = (text) => text.split(/=(.*)/s, 2).map((part) => part.trim())
    const titles = columns.split(",").filter((text) => text.trim()).map(pairOf)
    return titles.length ? { ...options, columns: Object.fromEntries(titles) } : options
  }

  /** The same in the query of a request whose body is the file. */
  query(further) {
    const { columns = {}, ...options } = this.options
    const query = new URLSearchParams({ ...further, ...options })
    for (const [name, title = ""] of Object.entries(columns)) query.append("column", `${name}:${title}`)
    return query
  }

  /** Opens the part if it has what decides how a refused file is read. */
  onRefusal({ field, details }) {
    const names = ["column", ...this.fields.map(({ name }) => name)]
    if (details?.line ?? details?.row ?? names.includes(field)) reveal(this.part)
  }
}
