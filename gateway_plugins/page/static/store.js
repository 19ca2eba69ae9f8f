// Files and results, stored in this browser (IndexedDB) until they are cleared, so that a reload loses nothing.

import { Answer, Entry } from "./entry.js";

const KEPT_FILES = 2_000;
const KEPT_BYTES = 256 * 2 ** 20;
const SAVE_MS = 400;
// Several gateways may share a host, each under a path.
const NAME = `gateway ${location.pathname}`;
const LEFT = { code: "stopped", message: "The page was closed before it was answered." };

/** The store of entries; does nothing if the browser refuses access. */
export class Store {
  #database = null;
  #size = 0;
  #count = 0;
  #written = new WeakMap();
  #timer = 0;
  #saving = Promise.resolve();

  /** The entries of the last visit, in their order. */
  async open() {
    try {
      this.#database = await opened();
      const rows = await settled(this.#rows("readonly").getAll());
      return rows.map((row) => this.#entry(row)).sort((one, other) => one.place - other.place);
    } catch {
      return [];
    }
  }

  /** Store the changes of these entries shortly. */
  keep(entries) {
    if (!this.#database || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#saving = this.#saving.then(() => this.#write(entries())).catch(() => {});
    }, SAVE_MS);
  }

  /** Delete all entries. */
  async clear() {
    clearTimeout(this.#timer);
    this.#timer = this.#size = this.#count = 0;
    this.#written = new WeakMap();
    await this.#saving;
    if (this.#database) await settled(this.#rows("readwrite").clear()).catch(() => {});
  }

  async #write(entries) {
    for (const entry of entries) {
      const state = written(entry);
      if (!entry.done || this.#written.get(entry) === state) continue;
      if (entry.id === null) {
        if (this.#count >= KEPT_FILES || this.#size + entry.file.size > KEPT_BYTES) continue;
        this.#count += 1;
        this.#size += entry.file.size;
      }
      this.#written.set(entry, state);
      const { id, place, file, folder, answers } = entry;
      const row = { place, file, folder, answers: answers.map(({ entry: _, ...rest }) => rest), ...(id === null ? {} : { id }) };
      entry.id = await settled(this.#rows("readwrite").put(row));
    }
  }

  #entry({ id, place = id, file, folder = "", answers }) {
    const entry = new Entry(file, folder);
    Object.assign(entry, { id, place });
    entry.answers = answers.map((kept) => Object.assign(new Answer(entry, kept.query), kept));
    for (const answer of entry.answers) if (!answer.done) answer.fail(LEFT);
    this.#written.set(entry, written(entry));
    this.#count += 1;
    this.#size += file.size;
    return entry;
  }

  #rows(mode) {
    return this.#database.transaction("entries", mode).objectStore("entries");
  }
}

/** The state of an entry that is stored: the results and faults of its answers. */
const written = (entry) => entry.answers.map(({ query, requestId, error }) => `${query} ${requestId} ${error?.code}`).join("\n");

function opened() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore("entries", { keyPath: "id", autoIncrement: true });
  return settled(request);
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(request.error);
  });
}
