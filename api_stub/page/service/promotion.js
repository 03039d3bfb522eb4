/** Promotion of a trained version: from then on, jobs that name the model get this version. */
import { newRepeatKey, post } from "./api.js"
import { made } from "../common/elements.js"
import { figure, signed } from "../common/format.js"
import { reason } from "../common/texts.js"

/** A button that promotes a version, such as "desk@3"; `backtest` is the id of one that has it and the present one. */
export function promotion(id, backtest = null) {
  const [name] = id.split("@")
  const box = made("div", { class: "promotion" })
  const say = made("div", { role: "status" })
  const button = (text, force) => made("button", { type: "button", onclick: () => promote(force) }, text)

  async function promote(force) {
    say.replaceChildren("Asking the service…")
    try {
      const { before, verdict } = await post(`models/${encodeURIComponent(id)}/promote`, { backtest, force }, newRepeatKey())
      const instead = before && before !== id ? ` instead of ${before}` : ""
      say.replaceChildren(made("p", { class: "good" }, `${name} means ${id} from now on${instead}.`), ...inFigures(verdict))
    } catch (error) {
      say.replaceChildren(made("p", { class: "bad" }, reason(error)), ...inFigures(error.details?.verdict))
      if (error.code !== "NOT_PROMOTED") return
      const query = new URLSearchParams({ model: id, other: name })
      say.append(made("p", { class: "row" }, made("a", { href: `#/backtest?${query}` }, `Backtest ${id} and ${name}`),
        button("Promote it without a backtest", true)))
    }
  }

  const help = made("span", { class: "help" }, `From then on, ${name} means this version.`)
  box.append(made("p", { class: "row" }, button(`Promote ${id}`, false), help), say)
  return box
}

/** A backtest's comparison as a paragraph; none without one. */
function inFigures(verdict) {
  const { verdict: kind, difference = null, low, high } = verdict ?? {}
  if (difference === null) return []
  const clear = kind === "unclear" ? ", which is no clear difference" : ""
  const range = low === null ? "" : ` (95 % range ${signed(low)} to ${signed(high)} %${clear})`
  return [made("p", {}, `By the backtest it is ${figure(Math.abs(difference))} % ${difference < 0 ? "worse" : "better"}${range}.`)]
}
