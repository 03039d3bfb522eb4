/** The page's elements: by id, made, and told something. Texts are texts, never markup. */

export const byId = (id) => document.getElementById(id)

/** A new element; `children` are elements and texts. */
export function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

/** Shows a text in an element that is hidden while there is none. */
export function tell(element, text) {
  element.textContent = text || ""
  element.hidden = !text
}

/** Shows rows of cells in a table's body, the first of each row as its heading. */
export function fillRows(body, rows) {
  body.replaceChildren(...rows.map(([head, ...cells]) => made(
    "tr", {}, made("th", { scope: "row" }, head), ...cells.map((cell) => made("td", {}, String(cell))),
  )))
}

/** Offers choices of `[value, text]`, and keeps the one that was chosen. Whether that is there no more. */
export function offer(select, choices) {
  const chosen = select.value
  const isGone = chosen !== "" && !choices.some(([value]) => value === chosen)
  const offered = isGone ? [...choices, [chosen, `${chosen}, gone`]] : choices
  const told = JSON.stringify(offered)
  if (select.dataset.choices === told) return isGone // an open list would close
  select.replaceChildren(...offered.map(([value, text]) => made("option", { value }, text)))
  select.dataset.choices = told
  if (offered.some(([value]) => value === chosen)) select.value = chosen
  return isGone
}

/** The first field of a form that cannot be used, said in one line; null where all can. Puts the focus there. */
export function badField(form) {
  const field = [...form.elements].find((element) => element.willValidate && !element.checkValidity())
  if (!field) return null
  field.focus()
  return `${field.labels[0].textContent.trim()}: ${field.validationMessage}`
}

/** A field's number, null where it is empty. */
export function numberIn(id) {
  const { value } = byId(id)
  return value === "" ? null : Number(value)
}
