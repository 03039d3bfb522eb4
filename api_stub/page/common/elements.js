/** Helpers for the page's elements. They insert texts as texts, never as markup. */
import { count } from "./format.js"

export const byId = (id) => document.getElementById(id)

/** What the page says of something, such as an error's code: a text of its HTML; undefined if there is none. */
export const said = (name) => byId(`says-${name}`)?.textContent

/** A new element; `children` are elements and texts. An attribute such as `onclick` is a function. */
export function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value
    else element.setAttribute(name, value)
  }
  element.append(...children)
  return element
}

/** A text in parts, whose names, such as "crypto-hourly.parquet", break at no hyphen if there is room in a line. */
export function whole(text) {
  return text.split(/(\S*-\S+)/).map((part, place) => (place % 2 ? made("span", { class: "whole" }, part) : part))
}

/** Shows a text in an element, with a button if there is something to do about it; no text hides the element. */
export function showText(element, text, onClick = null, action = "Try again") {
  element.textContent = text || ""
  element.hidden = !text
  if (text && onClick) element.append(" ", made("button", { type: "button", onclick: onClick }, action))
}

/** A table's row of a heading and cells. */
export const rowOf = (head, ...cells) => (
  made("tr", {}, made("th", { scope: "row" }, head), ...cells.map((cell) => made("td", {}, cell))))

/** A table of rows below its head, if it has one. */
export const tableOf = (head, rows) => (
  made("table", {}, ...(head ? [made("thead", {}, head)] : []), made("tbody", {}, ...rows)))

/** Shows rows of cells in a table's body. The first cell of each row is its heading. */
export const fillRows = (body, rows) => body.replaceChildren(...rows.map((cells) => rowOf(...cells)))

/** Shows facts, `[name, value, class, term, meaning]`, in a list of descriptions; none hide it. */
export function showFacts(list, facts) {
  list.hidden = !facts.length
  list.replaceChildren(...facts.map(([name, value, kind, term, meaning]) => made("div", {},
    made("dt", term ? { "data-term": term } : {}, name), made("dd", kind ? { class: kind } : {}, value),
    ...(meaning ? [made("dd", { class: "meaning" }, meaning)] : []))))
  explainTerms(list)
}

/** Explains every label with `data-term` in a part of the page: on hover, and to screen readers by the glossary. */
export function explainTerms(part) {
  for (const label of part.querySelectorAll("[data-term]")) {
    const { id, textContent: text } = byId(`term-${label.dataset.term}`)
    label.title = text
    const field = label.control ?? label
    field.title = text
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} ${id}`.trim())
  }
}

/** Offers choices of `[value, text]` and keeps the chosen one. Returns whether that one is gone. */
export function offer(select, choices) {
  const chosen = select.value
  const isGone = chosen !== "" && !choices.some(([value]) => value === chosen)
  const offered = isGone ? [...choices, [chosen, `${chosen}, no longer there`]] : choices
  const shown = JSON.stringify(offered)
  if (select.dataset.choices === shown) return isGone // a change would close an open list
  select.replaceChildren(...offered.map(([value, text]) => made("option", { value }, text)))
  select.dataset.choices = shown
  if (offered.some(([value]) => value === chosen)) select.value = chosen
  return isGone
}

/** Focuses the first invalid field of a form and returns one line about it; null if all are valid. */
export function badField(form) {
  const field = [...form.elements].find((element) => element.willValidate && !element.checkValidity())
  if (!field) return null
  const isAbove = field.validity.rangeOverflow && field.dataset.why
  const problem = isAbove ? `at most ${count(Number(field.max))}, ${field.dataset.why}.` : field.validationMessage
  mark(field, problem)
  field.focus()
  return `${field.labels[0].textContent.trim()}: ${problem}`
}

/** Opens the parts of a form that an element stands in. */
export function reveal(element) {
  for (let part = element.closest("details"); part; part = part.parentElement.closest("details")) part.open = true
}

/** Says next to a field what is wrong with it, until the user changes it; opens the parts that it stands in. */
export function mark(field, problem) {
  reveal(field)
  byId(`${field.id}-wrong`)?.remove()
  const described = field.getAttribute("aria-describedby") ?? ""
  const note = made("p", { id: `${field.id}-wrong`, class: "field-problem" }, problem)
  field.after(note)
  field.setAttribute("aria-invalid", "true")
  field.setAttribute("aria-describedby", `${note.id} ${described}`.trim())
  field.addEventListener("input", () => {
    note.remove()
    field.removeAttribute("aria-invalid")
    field.setAttribute("aria-describedby", described)
  }, { once: true })
}

/** Sets the highest value of a field, and why there is none above. */
export function limit(id, max, why) {
  byId(id).max = max
  byId(id).dataset.why = why
}

/** A field's number; null if it is empty. */
export const numberIn = (id) => (byId(id).value === "" ? null : Number(byId(id).value))

/** Saves a Blob as a file through the browser. */
export function save(blob, name) {
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000) // it has been read by then
}
