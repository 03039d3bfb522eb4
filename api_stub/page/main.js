/**
 * Builds the page. Each view has a folder; what several views need is in the others: `common/` (elements, texts,
 * numbers, settings, views), `service/` (the API and what it offers), `jobs/` (one sent, followed, listed) and `charts/`.
 */
import { get, key, onUnauthorized } from "./service/api.js"
import { BacktestPanel } from "./backtest/backtest_panel.js"
import { offerDevices, offerModels } from "./service/choices.js"
import { offerThemes } from "./charts/colours.js"
import { Datasets } from "./service/datasets.js"
import { byId, explainTerms } from "./common/elements.js"
import { FeedsPanel } from "./feeds/feeds_panel.js"
import { FinetunePanel } from "./finetune/finetune_panel.js"
import { ForecastPanel } from "./forecast/forecast_panel.js"
import { Pool, isForecasting } from "./service/pool.js"
import { RecentJobs } from "./jobs/recent_jobs.js"
import { readAddress, showView } from "./common/views.js"
import { showPool } from "./workers/workers_panel.js"

const pool = new Pool()
let hasModels = false

async function readModels() {
  const found = await get("models").catch(() => null) // the pool shows the error; its next update reads them again
  hasModels = found !== null
  if (!found) return
  offerModels(found.models)
  panels.finetunes.onModels()
}

/** Offers a trained model, and chooses it if `isChosen`. */
async function onModel(id, isChosen = true) {
  await readModels()
  if (!isChosen) return
  byId("model").value = id
  location.hash = "#/forecast"
  showView("forecast")
  byId("model").focus()
}

/** Asks for the API key if the service needs one, keeps it until the tab is closed, and calls `onKey`. */
function askForKey(onKey) {
  const form = byId("key-form")
  onUnauthorized.add(() => {
    byId("key-refused").hidden = !key.get()
    form.hidden = false
  })
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    const given = byId("key").value.trim()
    byId("key").value = ""
    byId("key-refused").hidden = /^[!-~]+$/.test(given)
    if (!byId("key-refused").hidden) return // a header cannot carry it
    key.set(given)
    form.hidden = true
    onKey()
  })
}

/** Shows the view, the settings and the job that the address names. */
function openAddress() {
  const { view, query, job } = readAddress(location.hash)
  showView(view)
  if (job?.kind === "forecasts") panels.forecasts.openJob(job.id)
  else if (job) panels[job.kind].job.open(job.id)
  if (query) settings.find((one) => one.view === view)?.apply(query)
}

const recent = new RecentJobs()
const datasets = new Datasets(pool)
const backtests = new BacktestPanel(pool, recent, datasets)
const panels = {
  forecasts: new ForecastPanel(pool, recent, (candles) => backtests.onCandles(candles)),
  finetunes: new FinetunePanel(pool, recent, datasets, onModel),
  backtests,
}
recent.onAgain = (kind, job, title, known) => {
  showView(kind.slice(0, -1))
  if (known?.lookback) panels[kind].view.show(known)
  panels[kind].job.send(job, title, known)
}
new FeedsPanel(pool)
const settings = Object.values(panels).map((panel) => panel.settings)
pool.onChange((state, error) => showPool(state, error, () => pool.refresh()))
offerThemes()
offerModels([])
offerDevices(byId("device"), [], isForecasting)
offerDevices(byId("finetune-device"), [], isForecasting)
pool.onChange((state) => {
  if (!state) return // without an answer, keep the devices
  offerDevices(byId("device"), state.workers, isForecasting)
  offerDevices(byId("finetune-device"), state.workers, (worker) => !isForecasting(worker))
  if (!hasModels) readModels()
  recent.refresh()
})
for (const button of document.querySelectorAll(".start button")) { // on a small screen, results come before the form
  const form = button.closest("section").querySelector("form")
  button.addEventListener("click", () => [form.scrollIntoView(), form.focus({ preventScroll: true })])
}
askForKey(() => {
  pool.refresh()
  openAddress()
})
explainTerms(document)
settings.forEach((one) => one.restore())
addEventListener("hashchange", openAddress)
openAddress()
if (!panels.forecasts.job.id) panels.forecasts.showExample()
pool.start()
