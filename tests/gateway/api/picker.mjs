// service.js with just enough of a page around it to see what the picker of models offers.
//     node picker.mjs STATIC ADDRESS_QUERY ANSWER_OF_MODELS ("" for none)

const [folder, search, answer] = process.argv.slice(2);
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
  const { status, body } = JSON.parse(answer);
  return { ok: status === 200, status, json: async () => body };
};

const { watchHealth } = await import(`${folder}/service.js`);
await watchHealth();
const { model, "model-problem": problem } = elements;
const { text, dataset } = model.selectedOptions[0];
console.log(
  JSON.stringify({
    offered: model.options.map((option) => option.text),
    chosen: text,
    asks: [dataset.model ?? null, dataset.version ?? null],
    problem: problem.textContent,
  }),
);
