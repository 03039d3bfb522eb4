/** The tools above the chart: how much of it is shown, its scale, and which of several series. */

import { byId, made } from "../common/elements.js"
import { count } from "../common/format.js"

/** @param onSeries Called with the place of the chosen series. */
export function offerTools(chart, onSeries) {
  for (const button of byId("ranges").querySelectorAll("button")) {
    const { range } = button.dataset
    button.addEventListener("click", () => chart.fit(Number(range) || range))
  }
  byId("log").addEventListener("change", () => chart.setLog(byId("log").checked))
  byId("series").addEventListener("change", () => onSeries(names.indexOf(byId("series").value)))
}

let names = []

/** Offers the series of a result, by a list that is searched as one types; one series needs no list. */
export function offerSeries(series, chosen) {
  names = series.map(({ id }, place) => id ?? `series ${count(place + 1)}`)
  byId("series-box").hidden = names.length < 2
  byId("series-names").replaceChildren(...names.map((value) => made("option", { value })))
  byId("series").value = names[chosen] ?? ""
}
