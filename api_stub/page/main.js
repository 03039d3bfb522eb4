/** Puts the page together. */

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
    hasModels = false // the pool, asked at the same time, says what is wrong; asked again with it
  }
}

/** A model that was trained: offered, and chosen where it is asked for. */
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
pool.onChange((seen) => {
  if (!seen) return // the devices may well be there
  offerDevices(byId("device"), seen.workers, isForecasting)
  offerDevices(byId("finetune-device"), seen.workers, (worker) => !isForecasting(worker))
  if (!hasModels) readModels()
})
askForKey(() => pool.look())
pool.start()
