// The pictures that lie beside a model, with their answers, shown until there are files of the user's own.

import { answerNode } from "./cards.js";
import { least, queries } from "./choice.js";
import { $, button, element } from "./dom.js";
import { Entry } from "./entry.js";
import { withKey } from "./key.js";
import { Run } from "./run.js";
import { chosenModel } from "./service.js";

/** Whether the page has a place for an example: there are no files of the user's own. */
let wanted = false;
/** The pictures of a model: `{ label, url, file }`, where `url` is of the fetched file. */
let pictures = [];
let ofModel = null;
let chosen = 0;
let entry = null;
let asked = "";
let run = null;
let drawn = [];

/** Show the example if the model has any, or hide it and drop its answer. */
export function showExample(show) {
  wanted = show;
  $("example").hidden = !show || !pictures.length;
  if (show) return;
  run?.stop();
  [entry, asked, run, drawn] = [null, "", null, []];
  $("example-answer").replaceChildren();
}

/** Fetch the pictures of the chosen model unless they are there, and classify the chosen one, unless that was done. */
export async function classifyExample({ position = chosen, again = false } = {}) {
  if (!wanted) return;
  const model = chosenModel();
  if (model !== ofModel) await takePictures(model);
  if (model !== ofModel || !wanted || !pictures.length) return;
  chosen = Math.min(position, pictures.length - 1);
  const [query] = queries();
  const request = `${model} ${chosen} ${query}`;
  if (asked === request && !again) return;
  asked = request;
  drawPictures();
  run?.stop();
  entry = new Entry(pictures[chosen].file);
  run = new Run({ changed: drawExample, finished: drawExample });
  run.add(entry.ask([query]));
}

/** Replace the pictures by those of another model, "" if its name is not known; there may be none. */
async function takePictures(model) {
  ofModel = model;
  chosen = 0;
  const found = model ? await fetchPictures(model) : [];
  if (model !== ofModel) return;
  for (const { url } of pictures) URL.revokeObjectURL(url);
  run?.stop();
  [entry, asked, run, drawn] = [null, "", null, []];
  pictures = found;
  $("example-answer").replaceChildren();
  $("samples").replaceChildren(...pictures.map(sample));
  $("samples").hidden = pictures.length < 2;
  showExample(wanted);
}

async function fetchPictures(model) {
  try {
    const response = await fetch(`models/${encodeURIComponent(model)}/examples`, { headers: withKey() });
    if (!response.ok) return [];
    const { examples } = await response.json();
    return (await Promise.all(examples.map(fetchPicture))).filter(Boolean);
  } catch {
    return [];
  }
}

/** A picture, by its file: an image element cannot send an API key. */
async function fetchPicture({ url, label }) {
  const response = await fetch(url, { headers: withKey() });
  if (!response.ok) return null;
  const content = await response.blob();
  const file = new File([content], url.split("/").at(-1), { type: content.type });
  return { label, url: URL.createObjectURL(content), file };
}

function sample({ label, url }, position) {
  const node = button("", () => classifyExample({ position, again: true }));
  const picture = element("img", "");
  Object.assign(picture, { src: url, width: 56, height: 48, alt: label ?? `Picture ${position + 1}` });
  node.append(picture);
  return node;
}

function drawPictures() {
  const { label, url } = pictures[chosen];
  $("example-title").textContent = label ? `An example: ${label}` : "An example";
  $("example-picture").src = url;
  $("example-picture").alt = label ?? "The example";
  [...$("samples").children].forEach((node, position) => node.setAttribute("aria-pressed", String(position === chosen)));
}

/** Draw the answer with the lowest score that is chosen now. */
export function drawExample() {
  if (!wanted || !entry) return;
  const { state, result } = entry.first;
  // Replaced only when it changes, since screen readers read it then.
  const now = [state, result, least()];
  if (now.every((each, position) => each === drawn[position])) return;
  drawn = now;
  $("example-answer").replaceChildren(answerNode(entry.first, { least: least() }));
}
