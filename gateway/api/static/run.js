// Files go to POST /predict in requests of moderate size, and every result is handed on as it arrives.

import { askForKey, withKey } from "./key.js";

// A browser reads an answer only when its whole request is out, so results of many files come sooner from several
// requests than from one, and a lost connection costs little.
const REQUEST_FILES = 32;
const REQUEST_BYTES = 24 * 2 ** 20;
// Browsers open six connections to a host; the readiness check and the API page want theirs.
const REQUESTS_AT_ONCE = 3;
const ATTEMPTS = 5;
const RETRY_SECONDS = 1;
const LONGEST_WAIT_SECONDS = 20;

// What a file may suffer without a fault of its own, and without any hope lost.
const PASSING = new Set(["model_unavailable", "overloaded", "triton_unreachable"]);

/** Why files have no answer, in the terms of a problem document. */
class Fault extends Error {
  constructor(code, message, { status = 0, retryAfter = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { code, status, retryAfter, requestId });
  }

  static of(body, response) {
    const retryAfter = response.headers.get("Retry-After");
    return new Fault(body.code ?? `http_${response.status}`, body.detail ?? `The server answered ${response.status}.`, {
      status: body.status ?? response.status,
      retryAfter: retryAfter === null ? null : Number(retryAfter) || RETRY_SECONDS,
      requestId: body.request_id,
    });
  }
}

const stopped = () => new Fault("stopped", "Stopped before it was answered.");
const lost = () => new Fault("connection_lost", "The connection to the gateway was lost.");

/** Sends files with one set of parameters; `changed` is called after every change, `finished` when all are done. */
export class Run {
  entries = new Set();
  model = null;
  /** The Server-Timing header of the last answer, and whether that was a stream, whose times end at its first line. */
  timing = null;
  streamed = false;
  /** Why it waits before it tries again, or "". */
  waiting = "";

  #queue = [];
  #requests = 0;
  #requestFiles = REQUEST_FILES;
  #controller = new AbortController();
  #started = performance.now();
  #ended = null;
  #changed;
  #finished;

  constructor(query, { changed, finished }) {
    this.query = query;
    this.#changed = changed;
    this.#finished = finished;
  }

  get running() {
    return this.#ended === null;
  }

  get seconds() {
    return ((this.#ended ?? performance.now()) - this.#started) / 1000;
  }

  get answered() {
    let number = 0;
    for (const entry of this.entries) number += entry.done;
    return number;
  }

  add(more) {
    for (const entry of more) {
      entry.reset();
      this.entries.add(entry);
      this.#queue.push(entry);
    }
    this.#pump();
  }

  stop() {
    for (const entry of this.#queue.splice(0)) entry.fail(stopped());
    this.#controller.abort();
    this.#changed();
  }

  #pump() {
    while (this.#requests < REQUESTS_AT_ONCE && this.#queue.length) {
      this.#requests += 1;
      this.#deliver(this.#nextBatch()).finally(() => {
        this.#requests -= 1;
        this.#pump();
      });
    }
    if (!this.#requests) {
      this.#ended = performance.now();
      this.waiting = "";
      this.#finished();
    }
    this.#changed();
  }

  #nextBatch() {
    let size = 0;
    let end = 0;
    for (const { file } of this.#queue) {
      size += file.size;
      if (end === this.#requestFiles || (end && size > REQUEST_BYTES)) break;
      end += 1;
    }
    return this.#queue.splice(0, end);
  }

  /** Send a batch until each of its files has a result or a fault; never throws. */
  async #deliver(batch) {
    const { signal } = this.#controller;
    for (let attempt = 1; ; attempt += 1) {
      let fault;
      try {
        fault = await this.#send(batch);
      } catch (error) {
        fault = error instanceof Fault ? error : lost();
      }
      if (fault.code === "connection_lost") await failUnreadable(batch);
      if (signal.aborted) fault = stopped();
      batch = batch.filter((entry) => !entry.done);
      if (!batch.length) return;
      if (batch.length > 1 && (fault.status === 413 || (fault.code === "connection_lost" && (await alive())))) {
        // Too much for one request; who refuses it may close the connection before the browser can read why.
        const middle = Math.ceil(batch.length / 2);
        if (fault.status === 413) this.#requestFiles = Math.min(this.#requestFiles, middle);
        await this.#deliver(batch.slice(0, middle));
        await this.#deliver(batch.slice(middle));
        return;
      }
      const mayPass = fault.retryAfter !== null || fault.code === "connection_lost";
      if (attempt === ATTEMPTS || !mayPass || !(await this.#pause(fault, attempt))) {
        for (const entry of batch) entry.fail(signal.aborted ? stopped() : fault);
        this.#changed();
        return;
      }
    }
  }

  /** One request; returns the reason for which some files may still have no result. */
  async #send(batch) {
    const form = new FormData();
    for (const entry of batch) {
      entry.state = "sent";
      form.append("files", entry.file, entry.name);
    }
    const streamed = batch.length > 1;
    const response = await fetch(`predict?${this.query}`, {
      method: "POST",
      body: form,
      headers: withKey({ Accept: streamed ? "application/x-ndjson" : "application/json" }),
      signal: this.#controller.signal,
    });
    askForKey(response);
    this.waiting = "";
    const requestId = response.headers.get("X-Request-ID");
    let unanswered = new Fault("incomplete_answer", "The answer ended before this file's result.", { requestId });
    const take = (result) => {
      const { index, error } = result;
      if (!batch[index] || batch[index].done) return;
      if (PASSING.has(error?.code)) {
        unanswered = new Fault(error.code, error.message, { retryAfter: RETRY_SECONDS, requestId });
        return;
      }
      batch[index].answer(result, requestId, result.model ?? this.model);
      this.#changed();
    };
    const type = response.headers.get("Content-Type") ?? "";
    if (type.startsWith("application/x-ndjson")) {
      for await (const line of lines(response.body)) {
        if (line.summary) this.model = line.model;
        else if (line.index === undefined) throw Fault.of(line.error, response);
        else take(line);
      }
    } else {
      const body = type.includes("json") ? await response.json() : {};
      if (!Array.isArray(body.results)) throw Fault.of(body, response);
      this.model = body.model;
      body.results.forEach(take);
    }
    this.timing = response.headers.get("Server-Timing");
    this.streamed = streamed;
    return unanswered;
  }

  /** Wait before the next attempt; false if the run was stopped meanwhile. */
  async #pause(fault, attempt) {
    const { signal } = this.#controller;
    const seconds = Math.min(LONGEST_WAIT_SECONDS, Math.max(fault.retryAfter ?? RETRY_SECONDS, 2 ** (attempt - 2)));
    this.waiting = `${fault.message} Trying again.`;
    this.#changed();
    await new Promise((resolve) => {
      // Requests that failed together must not all come back together.
      const timer = setTimeout(resolve, seconds * 1000 * (1 + Math.random() / 2));
      signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
    });
    return !signal.aborted;
  }
}

async function* lines(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const complete = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = complete.pop();
    for (const line of complete) yield JSON.parse(line);
  }
}

/** A file that was moved or changed since it was added ends the request that carries it. */
async function failUnreadable(batch) {
  for (const entry of batch) {
    if (entry.done) continue;
    try {
      await entry.file.stream().pipeTo(new WritableStream());
    } catch {
      entry.fail(new Fault("unreadable_file", "The file can no longer be read; it was moved or changed."));
    }
  }
}

async function alive() {
  try {
    return (await fetch("health/live", { cache: "no-store", signal: AbortSignal.timeout(5_000) })).ok;
  } catch {
    return false;
  }
}
