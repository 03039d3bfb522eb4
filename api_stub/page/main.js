/** Builds the page. */

import { get } from "./api.js"
import { askForKey } from "./key_form.js"
import { offerDevices, offerModels } from "./choices.js"
import { byId } from "./elements.js"
import { FinetunePanel } from "./finetune_panel.js"
import { ForecastPanel } from "./forecast_panel.js"
import { Pool, isForecasting } from "./pool.js"
import { showPool } from "./workers_panel.js"

const pool = new Pool()
let hasModels = false

async function readModels() {
  try {
    offerModels((await get("models")).models)
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

new ForecastPanel(pool)
new FinetunePanel(pool, onModel)
pool.onChange(showPool)
offerModels([])
offerDevices(byId("device"), [], isForecasting)
offerDevices(byId("finetune-device"), [], isForecasting)
pool.onChange((state) => {
  if (!state) return // without an answer, keep the devices
  offerDevices(byId("device"), state.workers, isForecasting)
  offerDevices(byId("finetune-device"), state.workers, (worker) => !isForecasting(worker))
  if (!hasModels) readModels()
})
askForKey(() => pool.refresh())
pool.start()
