/** The views of the page: the sections of main. One is shown at a time, and this browser remembers the last one. */
import { byId } from "./elements.js"
import { recall, remember } from "./storage.js"

const FIRST = "forecast"
let shown = null

const sections = () => [...document.querySelectorAll("main > section")]

/** Calls `listener` whenever a view comes to be shown. */
export const onView = (name, listener) => byId(name).addEventListener("shown", listener)

/** The name of the view that is shown. */
export const currentView = () => shown

/** Shows a view; its address stays as it is. */
export function showView(name) {
  if (name === shown) return
  const isFirst = shown === null
  shown = name
  for (const section of sections()) section.hidden = section.id !== name
  for (const link of document.querySelectorAll("header nav a")) link.ariaCurrent = link.hash === `#/${name}` ? "page" : null
  document.title = `${byId(`${name}-title`).textContent} · Kronos`
  if (recall("view", FIRST) !== name) remember("view", name)
  if (!isFirst) scrollTo(0, 0)
  byId(name).dispatchEvent(new Event("shown"))
}

/**
 * What an address asks for, such as #/backtest?windows=9, or #backtest and #forecasts/ID, as in 0.1.0.
 * @returns `{view, query, job}`: a view's name, its settings (null if there are none) and a job's `{kind, id}` or null.
 */
export function readAddress(hash) {
  const names = sections().map(({ id }) => id)
  const [, kind, id] = /^#([a-z]+)s\/([^/]+)$/.exec(hash) ?? []
  if (kind && names.includes(kind)) return { view: kind, query: null, job: { kind: `${kind}s`, id } }
  const [, name, query] = /^#\/?([a-z]+)(?:\?(.*))?$/.exec(hash) ?? []
  const last = recall("view", FIRST)
  const known = [name, shown, last].find((one) => names.includes(one)) ?? FIRST
  return { view: known, query: query ? Object.fromEntries(new URLSearchParams(query)) : null, job: null }
}
