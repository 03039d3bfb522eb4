/** The HTTP API: requests, errors, and a job's events as they come. */

const KEY_ITEM = "kronos.api-key"
const RETRY_MS = 1500

/** A refused request, or a job's error: `code`, `field` and `details` are those of a problem document. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, details = {} } = {}) {
    super(message)
    Object.assign(this, { status, code, field, details: details ?? {} })
  }
}

/** The API did not answer: it is down, or the network is. */
export class Unreachable extends Error {}

export const key = {
  get: () => sessionStorage.getItem(KEY_ITEM) ?? "",
  set: (text) => sessionStorage.setItem(KEY_ITEM, text),
}

/** Functions to call if a request is refused because its key is missing or wrong. */
export const onUnauthorized = new Set()

async function send(method, path, { body, headers = {} } = {}) {
  const sent = { ...headers }
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`
  let response
  try {
    response = await fetch(`v1/${path}`, { method, headers: sent, body })
  } catch {
    throw new Unreachable("The API does not answer. Check that it runs and that the network works.")
  }
  if (response.ok) return response
  const error = await problemOf(response)
  if (error.status === 401) onUnauthorized.forEach((listener) => listener())
  throw error
}

async function problemOf(response) {
  let problem = {}
  try {
    problem = await response.json()
  } catch {
    // Not a problem document, but for example a proxy's page: only the status is known.
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
 * Yields a job's states as they change, up to the one that ended it, and null for each lost connection, which is
 * opened again. EventSource cannot be used, because it cannot send a key.
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
      // fetch throws TypeError if a stream breaks off. After 502 to 504 the service may be restarting.
      if (!(error instanceof Unreachable || error.name === "TypeError" || error.status >= 502)) throw error
    }
    yield null
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
  }
}

export function hasEnded({ state }) {
  return ["done", "failed", "cancelled"].includes(state)
}

/** Yields the JSON of each event in a stream. */
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
