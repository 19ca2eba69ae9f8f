import { percent } from "./words.js";

// Errors of the file itself: no second attempt helps.
const FILE_FAULTS = new Set([
  "empty_file",
  "file_too_large",
  "image_quarantined",
  "image_too_large",
  "invalid_image",
  "too_costly",
  "too_many_frames",
  "truncated_image",
  "undecodable_image",
  "unreadable_file",
  "unsupported_format",
]);

// What may be animated, or a video; PNGs hardly ever are.
const MOVING = /^(image\/(gif|webp|avif|apng)$|video\/)/;
const FRAMES = "frames=8";

/** A query that asks for no frames. */
export const withoutFrames = (query) => query.replace(new RegExp(`&?${FRAMES}$`), "");

let lastPlace = 0;
const nextPlace = () => (lastPlace = Math.max(lastPlace + 1, Date.now()));

/** The result of one model for one file, requested with `query`: waiting, sent, ok or error. */
export class Answer {
  constructor(entry, query) {
    this.entry = entry;
    this.query = query;
    this.reset();
  }

  reset() {
    Object.assign(this, { state: "waiting", result: null, error: null, requestId: null, model: null });
  }

  /** Take one result of the API, in its own shape, and the model that gave it. */
  take(result, requestId, model) {
    Object.assign(this, { state: result.status, result, error: result.error, requestId, model });
  }

  fail({ code, message, requestId = null }) {
    Object.assign(this, { state: "error", error: { code, message }, requestId });
  }

  get done() {
    return this.state === "ok" || this.state === "error";
  }

  get retryable() {
    return this.state === "error" && !FILE_FAULTS.has(this.error.code);
  }

  /** The likeliest class, where there is one. */
  get best() {
    return this.result?.predictions[0] ?? null;
  }

  /** The model and its version as text, "" before a result. */
  get modelInWords() {
    return this.model?.version ? `${this.model.name} version ${this.model.version}` : "";
  }

  get inWords() {
    if (this.error) return this.error.message;
    if (!this.done) return "Waiting for its answer";
    return this.best ? `${this.best.label}, ${percent(this.best.score)}` : "No label is likely enough";
  }

  toJSON() {
    const { state: status, model, error } = this;
    const { width = null, height = null, predictions = [], frames = [] } = this.result ?? {};
    const moves = frames.length > 1 ? { frames } : {};
    return { filename: this.entry.name, status, width, height, model, predictions, error, ...moves };
  }
}

/** One file, and a result of each requested model: one, or two that are compared. */
export class Entry {
  answers = [];
  /** Whether the browser can show the file; null until it was tried. */
  previewable = null;
  /** Whether each of some frames is asked for; of a still picture there is one. */
  #moves;
  /** Its number in the browser's store, where it is kept. */
  id = null;
  /** Its place among all of them, over visits too; the store numbers them as their answers come. */
  place = nextPlace();

  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted image";
    this.#moves = MOVING.test(file.type);
  }

  /** The queries for this file, where every other one has these. */
  queriesFrom(queries) {
    return this.#moves ? queries.map((query) => [...(query ? [query] : []), FRAMES].join("&")) : queries;
  }

  /** Ask for no frames from now on; false for a video, which has nothing else. */
  hold() {
    this.#moves = this.file.type.startsWith("video/");
    return !this.#moves;
  }

  /** Request the results again; returns those to wait for. */
  ask(queries) {
    this.answers = this.queriesFrom(queries).map((query) => new Answer(this, query));
    return this.answers;
  }

  get first() {
    return this.answers[0];
  }

  get state() {
    if (!this.done) return "waiting";
    return this.answers.every((answer) => answer.state === "ok") ? "ok" : "error";
  }

  get done() {
    return this.answers.every((answer) => answer.done);
  }

  get inWords() {
    return this.answers.map((answer) => answer.inWords).join(" / ");
  }
}
