import { percent } from "./words.js";

// What no second attempt mends: the file itself is at fault.
const FILE_FAULTS = new Set([
  "empty_file",
  "file_too_large",
  "image_quarantined",
  "image_too_large",
  "invalid_image",
  "too_costly",
  "truncated_image",
  "undecodable_image",
  "image_quarantined",
  "unreadable_file",
  "unsupported_format",
]);

/** One file and what became of it: waiting, sent, ok or error. */
export class Entry {
  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted image";
    /** Whether the browser can show the file; null until it was tried. */
    this.previewable = null;
    this.reset();
  }

  reset() {
    Object.assign(this, { state: "waiting", result: null, error: null, requestId: null, model: null });
  }

  /** Take one result of the API, in its own shape, and the model that gave it. */
  answer(result, requestId, model) {
    Object.assign(this, { state: result.status, result, error: result.error, requestId, model });
  }

  /** The model and its version in words, "" where none has seen the file. */
  get modelInWords() {
    return this.model?.version ? `${this.model.name} version ${this.model.version}` : "";
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

  get inWords() {
    if (this.error) return this.error.message;
    const best = this.result?.predictions[0];
    return best ? `${best.label}, ${percent(best.score)}` : "Waiting for its answer";
  }

  toJSON() {
    const { name: filename, state: status, model, error } = this;
    const { width = null, height = null, predictions = [] } = this.result ?? {};
    return { filename, status, width, height, model, predictions, error };
  }
}
