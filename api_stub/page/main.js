/** Builds the page. */

import { get } from "./api.js"
import { askForKey } from "./key_form.js"
import { BacktestPanel } from "./backtest_panel.js"
import { offerDevices, offerModels } from "./choices.js"
import { offerThemes } from "./colours.js"
import { Datasets } from "./datasets.js"
import { byId } from "./elements.js"
import { FinetunePanel } from "./finetune_panel.js"
import { ForecastPanel } from "./forecast_panel.js"
import { explainTerms, fillGlossary } from "./glossary.js"
import { Pool, isForecasting } from "./pool.js"
import { RecentJobs } from "./recent_jobs.js"
import { showPool } from "./workers_panel.js"

const pool = new Pool()
let hasModels = false

async function readModels() {
  try {
    offerModels((await get("models")).models)
    panels.finetunes.onModels()
    hasModels = true
  } catch {
    hasModels = false // the pool shows the error; the next update of the pool reads the models again
  }
}

/** Offers a trained model, and chooses it if `isChosen`. */
async function onModel(id, isChosen = true) {
  await readModels()
  if (!isChosen) return
  byId("model").value = id
  byId("forecast").scrollIntoView()
  byId("model").focus()
}

/** Shows the job that the address names, such as #forecasts/ID, or a view with settings, such as #/forecast?horizon=24. */
function openAddress() {
  const [, kind, id] = /^#(forecasts|finetunes|backtests)\/([^/]+)$/.exec(location.hash) ?? []
  if (kind) panels[kind].openJob(id)
  const [, view, query] = /^#\/(forecast|backtest|finetune)(?:\?(.*))?$/.exec(location.hash) ?? []
  if (!view) return
  if (query) settings.find((one) => one.view === view).apply(Object.fromEntries(new URLSearchParams(query)))
  byId(view).scrollIntoView()
}

const recent = new RecentJobs()
const datasets = new Datasets(pool, {
  selects: ["dataset", "backtest-data"], upload: "dataset-upload", problem: "datasets-problem", sections: ["backtest", "finetune"],
})
const backtests = new BacktestPanel(pool, recent, datasets)
const panels = {
  forecasts: new ForecastPanel(pool, recent, (candles) => backtests.onCandles(candles)),
  finetunes: new FinetunePanel(pool, recent, datasets, onModel),
  backtests,
}
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
askForKey(() => {
  pool.refresh()
  openAddress()
})
fillGlossary()
explainTerms(document)
settings.forEach((one) => one.restore())
addEventListener("hashchange", openAddress)
openAddress()
pool.start()
