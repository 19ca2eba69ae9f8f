// A sample picture with its answer, shown until there are files of the user's own.

import { answerNode } from "./cards.js";
import { least, queries } from "./choice.js";
import { Entry } from "./entry.js";
import { Run } from "./run.js";

const $ = (id) => document.getElementById(id);

let entry = null;
let asked = "";
let run = null;
let drawn = [];

/** Whether the example is on the page. */
const shown = () => !$("example").hidden;

/** Show the example, or hide it and drop its answer. */
export function showExample(show) {
  if (show === shown()) return;
  $("example").hidden = !show;
  if (show) return;
  run?.stop();
  [entry, asked, run, drawn] = [null, "", null, []];
  $("example-answer").replaceChildren();
}

/** Classify the chosen sample by the chosen model, unless that was done already. */
export async function classifyExample({ file = $("samples").querySelector("[aria-pressed=true]").dataset.file, again = false } = {}) {
  const [query] = queries();
  const wanted = `${file} ${query}`;
  if (!shown() || (asked === wanted && !again)) return;
  asked = wanted;
  for (const button of $("samples").children) {
    const chosen = button.dataset.file === file;
    button.setAttribute("aria-pressed", String(chosen));
    if (!chosen) continue;
    $("example-picture").src = `assets/${file}`;
    $("example-picture").alt = button.firstElementChild.alt;
  }
  run?.stop();
  const response = await fetch(`assets/${file}`).catch(() => null);
  if (asked !== wanted || !response?.ok) return;
  entry = new Entry(new File([await response.blob()], file, { type: "image/jpeg" }));
  run = new Run({ changed: drawExample, finished: drawExample });
  run.add(entry.ask([query]));
}

/** Draw the answer with the lowest score that is chosen now. */
export function drawExample() {
  if (!shown() || !entry) return;
  const { state, result } = entry.first;
  // Replaced only when it changes, since screen readers read it then.
  const now = [state, result, least()];
  if (now.every((each, position) => each === drawn[position])) return;
  drawn = now;
  $("example-answer").replaceChildren(answerNode(entry.first, { least: least() }));
}

/** Listen to the pictures. */
export function onSamples() {
  $("samples").addEventListener("click", (event) => {
    const { file } = event.target.closest("button")?.dataset ?? {};
    if (file) classifyExample({ file, again: true });
  });
}
