/** The HTTP API: requests, errors, and a job's events as they come. */
import { mebibytes } from "../common/format.js"

const ITEM = "kronos.api-key"
const RETRY_MS = 1500
const SILENT_MS = 20_000 // without an answer; the API itself waits for Redis for less
const SLOW_BYTES_PER_MS = 50 // a body may take so long to arrive
const STREAM_SILENT_MS = 40_000 // the API sends a comment every 15 s

/** A refused request, or a job's error: `code`, `field` and `details` are those of a problem document. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = null, details = {} } = {}) {
    super(message)
    Object.assign(this, { status, code, field, details: details ?? {} })
  }
}

/** The API did not answer: it is down or hangs, or the network is away. */
export class Unreachable extends Error {}

export const key = { get: () => sessionStorage.getItem(ITEM) ?? "", set: (text) => sessionStorage.setItem(ITEM, text) }

/** Functions to call if a request is refused because its key is missing or wrong. */
export const onUnauthorized = new Set()

async function send(method, path, { body, headers = {}, silentMs = SILENT_MS, read = (answer) => answer.json() } = {}) {
  const sent = { ...headers }
  if (key.get()) sent.Authorization = `Bearer ${key.get()}`
  const patienceMs = silentMs + (body?.size ?? body?.length ?? 0) / SLOW_BYTES_PER_MS
  const abort = new AbortController()
  const timer = setTimeout(() => abort.abort(), patienceMs)
  try {
    const response = await fetch(`v1/${path}`, { method, headers: sent, body, signal: abort.signal })
    if (response.ok) return await read(response)
    throw await problemOf(response)
  } catch (error) {
    if (error.status === 401) onUnauthorized.forEach((listener) => listener())
    if (abort.signal.aborted) {
      const seconds = Math.round(patienceMs / 1000)
      throw new Unreachable(`The service has not answered for ${seconds} s. It may have too much to do.`)
    }
    if (error.name !== "TypeError") throw error // a broken connection is a TypeError
    throw new Unreachable("The service does not answer. Check your network. If that works, the service may be down.")
  } finally {
    clearTimeout(timer)
  }
}

async function problemOf(response) {
  const problem = await response.json().catch(() => ({})) // of a proxy's page, only the status is known
  const message = problem.detail ?? `The service answered ${response.status} ${response.statusText}`.trim()
  return new ApiError(message, { ...problem, status: response.status })
}

export const get = (path, options) => send("GET", path, options)

/** Posts a job. With the same `repeatKey`, a repeated request finds the same job. */
export function post(path, job, repeatKey) {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": repeatKey }
  return send("POST", path, { body: JSON.stringify(job), headers })
}

/** A new key for `post`. */
export const newRepeatKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-")

/** The most bytes of an upload. Readings of the pool set it. */
export const uploads = { maxBytes: Infinity }

/** Uploads a file. The API reads all of it before it answers, for at most three minutes. */
export async function upload(path, file) {
  if (file.size > uploads.maxBytes) {
    const [size, most] = [file.size, uploads.maxBytes].map(mebibytes)
    throw new ApiError(`${file.name} has ${size} MiB; the service takes at most ${most}.`)
  }
  return send("POST", path, {
    body: file, headers: { "Content-Type": "application/octet-stream" }, silentMs: 200_000,
  })
}

export const remove = (path) => send("DELETE", path)

/**
 * Yields a job's states as they change, up to the one that ended it, and null for each lost connection, which is opened
 * again. Ends without a further state once `signal` is aborted. EventSource is not used, because it cannot send a key.
 */
export async function* states(path, signal) {
  while (!signal.aborted) {
    try {
      const body = await send("GET", `${path}/events`, { headers: { Accept: "text/event-stream" }, read: (answer) => answer.body })
      for await (const state of dataOf(body, signal)) {
        yield state
        if (hasEnded(state)) return
      }
    } catch (error) {
      // fetch throws TypeError if a stream breaks off. After 502 to 504 the service may be restarting.
      if (!(error instanceof Unreachable || error.name === "TypeError" || error.status >= 502)) throw error
    }
    if (signal.aborted) return
    yield null
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
  }
}

export const hasEnded = ({ state }) => ["done", "failed", "cancelled"].includes(state)

/** Yields the JSON of each event in a stream, until it ends, is silent for long, or `signal` is aborted. */
async function* dataOf(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  const stop = () => reader.cancel().catch(() => {}) // it may have ended by itself
  signal.addEventListener("abort", stop)
  let rest = ""
  let timer = null
  try {
    while (true) {
      timer = setTimeout(stop, STREAM_SILENT_MS)
      const { value, done } = await reader.read()
      clearTimeout(timer)
      if (done || signal.aborted) return
      const events = (rest + value).split(/\r?\n\r?\n/)
      rest = events.pop()
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        if (lines.length) yield JSON.parse(lines.map((line) => line.slice(5)).join("\n"))
      }
    }
  } finally {
    clearTimeout(timer)
    signal.removeEventListener("abort", stop)
    stop()
  }
}
