/** The HTTP API: requests, errors, and a job's events as they come. */

const KEY_ITEM = "kronos.api-key"
const RETRY_MS = 1500

/** What the API refused, or a job's error: `code`, `field` and `details` as in a problem document. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, details = {} } = {}) {
    super(message)
    Object.assign(this, { status, code, field, details: details ?? {} })
  }
}

/** Nobody answered: the API is gone, or the network is. */
export class Unreachable extends Error {}

export const key = {
  get: () => sessionStorage.getItem(KEY_ITEM) ?? "",
  set: (text) => sessionStorage.setItem(KEY_ITEM, text),
}

/** Called when a request is refused for want of a key. */
export const onUnauthorized = new Set()

async function send(method, path, { body, headers = {} } = {}) {
  const sent = { ...headers }
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`
  let response
  try {
    response = await fetch(`v1/${path}`, { method, headers: sent, body })
  } catch {
    throw new Unreachable("The API does not answer. Is it running, and is the network there?")
  }
  if (response.ok) return response
  const error = await problemOf(response)
  if (error.status === 401) onUnauthorized.forEach((tell) => tell())
  throw error
}

async function problemOf(response) {
  let problem = {}
  try {
    problem = await response.json()
  } catch {
    // A proxy's page, say: its status is all there is to tell.
  }
  const message = problem.detail ?? `The API answered ${response.status} ${response.statusText}`.trim()
  return new ApiError(message, { ...problem, status: response.status })
}

export async function get(path, options) {
  return (await send("GET", path, options)).json()
}

export async function post(path, content) {
  const headers = { "Content-Type": "application/json" }
  return (await send("POST", path, { body: JSON.stringify(content), headers })).json()
}

export async function upload(path, file, type) {
  return (await send("POST", path, { body: file, headers: { "Content-Type": type } })).json()
}

export async function remove(path) {
  await send("DELETE", path)
}

/**
 * A job's states as they change, the one that ended it last. A lost connection is taken up again, with a null
 * between to tell of it. Not by EventSource, which cannot send a key.
 */
export async function* states(path) {
  while (true) {
    try {
      const response = await send("GET", `${path}/events`, { headers: { Accept: "text/event-stream" } })
      for await (const state of dataOf(response.body)) {
        yield state
        if (hasEnded(state)) return
      }
    } catch (error) {
      // TypeError is what fetch calls a stream that broke off; behind 502 to 504 the service may be starting anew.
      if (!(error instanceof Unreachable || error.name === "TypeError" || error.status >= 502)) throw error
    }
    yield null
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
  }
}

export function hasEnded({ state }) {
  return ["done", "failed", "cancelled"].includes(state)
}

/** The JSON of each event of a stream. */
async function* dataOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ""
  try {
    while (true) {
      const { value, done } = await reader.read()
      if (done) return
      const events = (rest + value).split(/\r?\n\r?\n/)
      rest = events.pop()
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        if (lines.length) yield JSON.parse(lines.map((line) => line.slice(5)).join("\n"))
      }
    }
  } finally {
    reader.cancel().catch(() => {}) // it may have ended by itself
  }
}
