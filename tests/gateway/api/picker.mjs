// Runs service.js with just enough of a page around it to see the menu of models.
//     node picker.mjs STATIC '[[ADDRESS_QUERY, RESPONSE_OF_MODELS or null], …]'
// Each case has a thread, and so modules of its own.

import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

if (isMainThread) {
  const [folder, cases] = process.argv.slice(2);
  const results = JSON.parse(cases).map(
    ([search, answer]) =>
      new Promise((resolve, reject) => {
        const worker = new Worker(new URL(import.meta.url), { workerData: { folder, search, answer } });
        worker.once("message", resolve);
        worker.once("error", reject);
      }),
  );
  console.log(JSON.stringify(await Promise.all(results)));
  process.exit();
}

const { folder, search, answer } = workerData;
const elements = {};

function makeElement() {
  const listeners = {};
  return {
    dataset: {},
    options: [],
    textContent: "",
    get selectedOptions() {
      return [this.options.find((each) => each.selected) ?? this.options[0]];
    },
    replaceChildren(...nodes) {
      this.options = nodes;
    },
    addEventListener(type, listener) {
      (listeners[type] ??= []).push(listener);
    },
    dispatchEvent(event) {
      for (const listener of listeners[event.type] ?? []) listener(event);
    },
  };
}

globalThis.document = { getElementById: (id) => (elements[id] ??= makeElement()), hidden: true };
globalThis.location = { search };
globalThis.Option = class {
  dataset = {};
  constructor(text) {
    this.text = text;
  }
};
globalThis.fetch = async (path) => {
  if (path === "health/ready") return { json: async () => ({ status: "ready", model: "m", endpoints: [] }) };
  if (!answer) throw new TypeError("fetch failed");
  const { status, body } = answer;
  return { ok: status === 200, status, json: async () => body };
};

const { watchHealth } = await import(`${folder}/service.js`);
await watchHealth();
const { model, "model-problem": problem } = elements;
const { text, dataset } = model.selectedOptions[0];
parentPort.postMessage({
  offered: model.options.map((option) => option.text),
  chosen: text,
  asks: [dataset.model ?? null, dataset.version ?? null],
  problem: problem.textContent,
});
