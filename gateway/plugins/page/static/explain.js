// Why a model gave a label: which parts of the picture carry its score, by POST /explain.

import { element } from "./dom.js";
import { parsed, post } from "./exchange.js";
import { askForKey, withKey } from "./key.js";
import { percent } from "./words.js";

/** The largest difference of the score that still counts as none. */
const NOTHING = 0.02;

/** The explanation of each explained answer. */
const explanations = new WeakMap();

export const isExplained = (answer) => explanations.has(answer);

/**
 * Request the explanation of an answer's best label. Throws Error with the service's reason, and AbortError if `signal`
 * is aborted.
 */
export async function explain(answer, { signal }) {
  const { entry, best, model, query } = answer;
  const parameters = new URLSearchParams({ class_id: best.class_id });
  if (model?.name) parameters.set("model", model.name);
  const version = new URLSearchParams(query).get("version");
  if (version) parameters.set("version", version);
  const form = new FormData();
  form.append("files", entry.file, entry.name);
  const headers = withKey({ Accept: "application/json" });
  const response = await post(`explain?${parameters}`, form, { headers, signal, sent: () => {}, line: () => {} });
  askForKey(response);
  const { explanation, detail } = parsed(response.text) ?? {};
  if (!explanation) throw new Error(detail ?? `The gateway answered ${response.status}.`);
  explanations.set(answer, explanation);
}

/** Whether hiding any part changes the score. */
const matters = (values) => values.flat().some((value) => Math.abs(value) >= NOTHING);

/** The map of an answer, over a copy of the picture (an image element) if the browser can show it. */
export function mapNode(answer, picture) {
  const { label, score, overlay, values } = explanations.get(answer);
  const copy = picture.cloneNode();
  copy.removeAttribute("id");
  const heat = element("img", "heat");
  heat.src = `data:image/png;base64,${overlay}`;
  heat.alt = `Heat map: the parts of the picture that raise the score of ${label}`;
  const box = element("div", "picture-box");
  box.append(...(picture.naturalWidth ? [copy] : []), heat);
  const words = element("figcaption", "fine");
  words.append(element("strong", "", `${label}, ${percent(score)}`), element("span", "of-model", answer.modelInWords));
  if (!matters(values)) {
    const nothing = element("span", "nothing", "No part matters: whatever is hidden, the score stays within 2%.");
    nothing.setAttribute("role", "status");
    words.append(nothing);
  }
  const figure = element("figure", "map");
  figure.append(box, words);
  return figure;
}
