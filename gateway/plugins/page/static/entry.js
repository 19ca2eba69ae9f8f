import { percent } from "./words.js";

// Errors of the file itself: a retry cannot help.
const FILE_FAULTS = new Set([
  "damaged_image",
  "empty_file",
  "fetch_failed",
  "fetch_timeout",
  "file_too_large",
  "image_crashed_model",
  "image_too_large",
  "invalid_image",
  "too_costly",
  "too_many_frames",
  "truncated_image",
  "undecodable_image",
  "unreadable_file",
  "unsupported_format",
  "url_not_allowed",
]);

/** The folder of a path, without a slash at its ends. */
export const folderOf = (path) => path.split("/").filter(Boolean).slice(0, -1).join("/");

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

  /** Take one result of the API in the native format, and the model that answered. */
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

  /** The prediction with the highest score, if any. */
  get best() {
    return this.result?.predictions[0] ?? null;
  }

  /** The model and its version as text, "" before a result. The cards leave out what all of them share. */
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
    const { width = null, height = null, predictions = [] } = this.result ?? {};
    return { filename: this.entry.name, status, width, height, model, predictions, error };
  }
}

/** One file, and a result of each requested model: one, or two that are compared. */
export class Entry {
  answers = [];
  /** Whether the browser can show the file; null until it was tried. */
  previewable = null;

  constructor(file, folder = folderOf(file.webkitRelativePath ?? "")) {
    this.file = file;
    this.name = file.name || "pasted image";
    /** The folder that the file was dropped or chosen with, "" where it is unknown. */
    this.folder = folder;
  }

  /** Request the results again; returns those to wait for. */
  ask(queries) {
    this.answers = queries.map((query) => new Answer(this, query));
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

/** The dropped files, including those in folders, as `[file, folder]`; hidden files in folders are left out. */
export async function droppedFiles(transfer) {
  // Browsers empty the list when the event has ended, so all items are read before the first await.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const handles = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = [];
  for (const handle of handles) await walk(handle, files);
  return files;
}

async function walk(handle, files) {
  if (handle instanceof File) files.push([handle, ""]);
  else if (handle?.isFile) {
    files.push([await new Promise((resolve, reject) => handle.file(resolve, reject)), folderOf(handle.fullPath)]);
  }
  else if (handle?.isDirectory) {
    const reader = handle.createReader();
    for (;;) {
      // Each call returns at most some hundred entries.
      const children = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!children.length) return;
      for (const child of children) if (!child.name.startsWith(".")) await walk(child, files);
    }
  }
}
