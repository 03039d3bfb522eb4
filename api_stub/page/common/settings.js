/** The settings of one view: kept in this browser, shared by the address, and set back to the defaults. */
import { byId, made } from "./elements.js"
import { count } from "./format.js"
import { forget, recall, remember } from "./storage.js"

export class Settings {
  #fields
  #advanced
  #onApply
  #line

  /**
   * @param view The view's name, as in the address `#/forecast?horizon=24`. Its form's fields have the settings' names.
   * @param onApply Called after fields were set by code, which calls no listeners.
   */
  constructor(view, onApply = () => {}) {
    this.view = view
    const form = byId(`${view}-form`)
    this.#fields = [...form.elements].filter(({ name }) => name).map((field) => [field.name, field])
    this.#onApply = onApply
    this.#advanced = form.querySelector("details.advanced")
    this.#line = this.#advanced.querySelector(".settings")
    this.#line.lastElementChild.addEventListener("click", () => this.#reset())
    for (const [, field] of this.#fields) {
      field.addEventListener("input", () => {
        delete field.dataset.proposed
        this.#keep()
      })
    }
  }

  /** Sets the fields to what this browser remembers. */
  restore() { if (recall(this.#item, null)) this.apply(recall(this.#item, null)) }

  /** Sets the fields to values by name, and all others to their defaults. */
  apply(values) {
    for (const [name, field] of this.#fields) {
      const value = values[name] ?? defaultOf(field)
      if (valueOf(field) !== value) set(field, value)
      delete field.dataset.proposed
    }
    this.#onApply()
    this.#show()
  }

  get #item() { return `settings.${this.view}` }

  /** The values that differ from the defaults, by name. */
  get #values() {
    const changed = this.#fields.filter(([, field]) => !("proposed" in field.dataset) && valueOf(field) !== defaultOf(field))
    return Object.fromEntries(changed.map(([name, field]) => [name, valueOf(field)]))
  }

  #keep() {
    const values = this.#values
    if (Object.keys(values).length) remember(this.#item, values)
    else forget(this.#item)
    this.#show()
    const isOfJob = /^#[a-z]+\//.test(location.hash) // it stays behind, so that "back" shows the job again
    const query = String(new URLSearchParams(values))
    history[isOfJob ? "pushState" : "replaceState"](null, "", `#/${this.view}${query ? `?${query}` : ""}`)
  }

  #reset() {
    this.apply({})
    this.#keep()
    byId(`${this.view}-form`).querySelector(".primary").focus()
  }

  #show() {
    const values = this.#values
    const number = Object.keys(values).length
    this.#line.hidden = !number
    const text = number === 1 ? "1 setting is not the default." : `${count(number)} settings are not the defaults.`
    this.#line.firstElementChild.textContent = text
    const inside = this.#fields.filter(([name, field]) => name in values && this.#advanced.contains(field)).length
    this.#advanced.querySelector(".changed").textContent = inside ? `${count(inside)} changed` : ""
  }
}

/** Fills in a field for the user, which does not count as a setting until the user changes it. */
export function propose(id, value) {
  byId(id).value = value
  byId(id).dataset.proposed = ""
}

/** Whether the user has not filled in a field. */
export const isFree = (id) => "proposed" in byId(id).dataset || valueOf(byId(id)) === defaultOf(byId(id))

/** Opens parts of a form that have fields that the user has filled in. */
export function showChanged(...ids) {
  for (const part of ids.map(byId)) part.open ||= [...part.querySelectorAll("input, select")].some(({ id }) => !isFree(id))
}

const isBox = ({ type }) => type === "checkbox"

const valueOf = (field) => isBox(field) ? String(field.checked) : field.value

function defaultOf(field) {
  if (isBox(field)) return String(field.defaultChecked)
  if (field.tagName !== "SELECT") return field.defaultValue
  return (field.querySelector("option[selected]") ?? field.options[0])?.value ?? ""
}

function set(field, value) {
  if (isBox(field)) field.checked = value === "true"
  const isMissing = field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)
  if (isMissing) field.append(made("option", { value }, value)) // it may be offered once the service has answered
  if (!isBox(field)) field.value = value
}
