// Sends files to POST /predict in requests of moderate size, and reports each result as it arrives.

import { parsed, post } from "./exchange.js";
import { askForKey, keyRefused, UNAUTHORIZED, withKey } from "./key.js";

// Browsers read a response only once the whole request is sent, so the results of many files arrive sooner from several
// requests than from one, and a lost connection costs little.
const REQUEST_FILES = 32;
const REQUEST_BYTES = 24 * 2 ** 20;
// Browsers open six connections to a host; the readiness check and the API page need some of them.
const REQUESTS_AT_ONCE = 3;
const ATTEMPTS = 5;
const RETRY_SECONDS = 1;
const LONGEST_WAIT_SECONDS = 20;

// Temporary errors that are not the file's own.
const PASSING = new Set(["model_unavailable", "overloaded", "triton_unreachable"]);

/** Why files have no result, with the members of a problem document. */
class Fault extends Error {
  constructor(code, message, { status = 0, retryAfter = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { code, status, retryAfter, requestId });
  }

  static of(body, status, header) {
    const retryAfter = header("Retry-After");
    const words = body.code === UNAUTHORIZED ? keyRefused() : (body.detail ?? `The gateway answered ${status}.`);
    return new Fault(body.code ?? `http_${status}`, words, {
      status: body.status ?? status,
      retryAfter: retryAfter === null ? null : Number(retryAfter) || RETRY_SECONDS,
      requestId: body.request_id,
    });
  }
}

const stopped = () => new Fault("stopped", "Stopped before it was answered.");
/** The code of a missing response while the gateway cannot be reached. */
export const LOST = "connection_lost";
const lost = () => new Fault(LOST, "The connection to the gateway was lost.");

/** Requests results; `changed` is called after each change, `finished` after the last one. */
export class Run {
  answers = new Set();
  model = null;
  /** Why the next attempt is delayed, or "". */
  waiting = "";

  #queue = [];
  #requests = 0;
  #requestFiles = REQUEST_FILES;
  #controller = new AbortController();
  #started = performance.now();
  #ended = null;
  /** Bytes sent, for each running request and for all finished ones. */
  #out = new Map();
  #outBefore = 0;
  #changed;
  #finished;

  constructor({ changed, finished }) {
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
    for (const answer of this.answers) number += answer.done;
    return number;
  }

  /** Bytes to be sent, and how many of them are. */
  get bytes() {
    let total = 0;
    for (const { entry } of this.answers) total += entry.file.size;
    let sent = this.#outBefore;
    for (const out of this.#out.values()) sent += out;
    return { total, sent: Math.min(sent, total) };
  }

  add(more) {
    for (const answer of more) {
      answer.reset();
      this.answers.add(answer);
      this.#queue.push(answer);
    }
    this.#pump();
  }

  stop() {
    for (const answer of this.#queue.splice(0)) answer.fail(stopped());
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

  /** Files for one request: with the same parameters, and not too many. */
  #nextBatch() {
    const [{ query }] = this.#queue;
    const batch = new Set();
    let size = 0;
    for (const answer of this.#queue) {
      if (answer.query !== query) continue;
      size += answer.entry.file.size;
      if (batch.size === this.#requestFiles || (batch.size && size > REQUEST_BYTES)) break;
      batch.add(answer);
    }
    this.#queue = this.#queue.filter((answer) => !batch.has(answer));
    return [...batch];
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
      if (fault.code === LOST) await failUnreadable(batch);
      if (signal.aborted) fault = stopped();
      batch = batch.filter((answer) => !answer.done);
      if (!batch.length) return;
      if (batch.length > 1 && (fault.status === 413 || (fault.code === LOST && (await alive())))) {
        // Too large for one request; a server that refuses it may close the connection before the browser can read why.
        const middle = Math.ceil(batch.length / 2);
        if (fault.status === 413) this.#requestFiles = Math.min(this.#requestFiles, middle);
        await this.#deliver(batch.slice(0, middle));
        await this.#deliver(batch.slice(middle));
        return;
      }
      const mayPass = fault.retryAfter !== null || fault.code === LOST;
      if (attempt === ATTEMPTS || !mayPass || !(await this.#pause(fault, attempt))) {
        for (const answer of batch) answer.fail(signal.aborted ? stopped() : fault);
        this.#changed();
        return;
      }
    }
  }

  /** Send one request; returns the reason why some files may still have no result. */
  async #send(batch) {
    const form = new FormData();
    let size = 0;
    for (const answer of batch) {
      answer.state = "sent";
      size += answer.entry.file.size;
      form.append("files", answer.entry.file, answer.entry.name);
    }
    let unanswered = new Fault("incomplete_answer", "The answer ended before this file's result.");
    const take = (result, header) => {
      const { index, error } = result;
      const requestId = header("X-Request-ID");
      if (!batch[index] || batch[index].done) return;
      if (PASSING.has(error?.code)) {
        unanswered = new Fault(error.code, error.message, { retryAfter: RETRY_SECONDS, requestId });
        return;
      }
      batch[index].take(result, requestId, result.model ?? this.model);
      this.#changed();
    };
    const several = batch.length > 1;
    const response = await this.#counted(size, (sent) =>
      post(`predict?${batch[0].query}`, form, {
        headers: withKey({ Accept: several ? "application/x-ndjson" : "application/json" }),
        signal: this.#controller.signal,
        sent,
        line: (line, header) => {
          this.waiting = "";
          if (line.summary) this.model = line.model;
          else if (line.index === undefined) throw Fault.of(line.error, 200, header);
          else take(line, header);
        },
      }),
    );
    askForKey(response);
    this.waiting = "";
    const { status, header, streamed, text } = response;
    if (!streamed) {
      const body = parsed(text);
      if (!Array.isArray(body.results)) throw Fault.of(body, status, header);
      this.model = body.model;
      for (const result of body.results) take({ ...result, model: body.model }, header);
    }
    unanswered.requestId ??= header("X-Request-ID");
    return unanswered;
  }

  /** Count the bytes of a request of `size` while it is sent; those of a failed request count again. */
  async #counted(size, send) {
    const request = Symbol("request");
    try {
      const response = await send((out) => {
        this.#out.set(request, Math.min(out, size));
        this.#changed();
      });
      this.#outBefore += size;
      return response;
    } finally {
      this.#out.delete(request);
    }
  }

  /** Wait before the next attempt; false if the run was stopped meanwhile. */
  async #pause(fault, attempt) {
    const { signal } = this.#controller;
    const seconds = Math.min(LONGEST_WAIT_SECONDS, Math.max(fault.retryAfter ?? RETRY_SECONDS, 2 ** (attempt - 2)));
    this.waiting = `${fault.message} Trying again.`;
    this.#changed();
    await new Promise((resolve) => {
      // Random, so that requests that failed at the same time are not all repeated at the same time.
      const timer = setTimeout(resolve, seconds * 1000 * (1 + Math.random() / 2));
      signal.addEventListener("abort", () => resolve(clearTimeout(timer)), { once: true });
    });
    return !signal.aborted;
  }
}

/** A file that was moved or changed since it was added ends the request that carries it. */
async function failUnreadable(batch) {
  for (const answer of batch) {
    if (answer.done) continue;
    try {
      await answer.entry.file.stream().pipeTo(new WritableStream());
    } catch {
      answer.fail(new Fault("unreadable_file", "The file can no longer be read; it was moved or changed."));
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
