// Whether an answer is right: on each card, if the service logs predictions and takes feedback (GET /models).

import { button, element, searchField, tellFailure } from "./dom.js";
import { withKey } from "./key.js";
import { factsOf, takesFeedback } from "./service.js";
import { count } from "./words.js";

const OFFERED = 6;

/** The functions that draw the feedback of an answer: it may be on a card and in the viewer. */
const drawers = new WeakMap();

/** The buttons that say whether an answer's best label is right; null where there is nothing to say. */
export function verdictNode(answer) {
  if (!takesFeedback() || !answer.best || !answer.requestId) return null;
  const node = element("div", "row verdict");
  const draw = () => node.replaceChildren(...(answer.reported ? given(answer) : asked(answer, node)));
  if (!drawers.has(answer)) drawers.set(answer, new Set());
  drawers.get(answer).add(draw);
  draw();
  return node;
}

function asked(answer, node) {
  const wrong = button("Wrong…", () => {
    const open = node.querySelector(".chooser");
    if (open) open.remove();
    else node.append(chooser(answer, () => close()));
    wrong.setAttribute("aria-expanded", String(!open));
    node.querySelector(".chooser input")?.focus();
  });
  const close = () => {
    node.querySelector(".chooser")?.remove();
    wrong.setAttribute("aria-expanded", "false");
    wrong.focus();
  };
  wrong.setAttribute("aria-expanded", "false");
  wrong.title = `Say what it is, if “${answer.best.label}” is wrong; the service logs it.`;
  const right = button("Right", () => report(answer, { class_id: answer.best.class_id }, `Right: ${answer.best.label}`, node));
  right.title = `Say that “${answer.best.label}” is right; the service logs it.`;
  return [right, wrong];
}

function given(answer) {
  const words = element("span", "said-verdict", answer.reported);
  words.setAttribute("role", "status");
  const undo = button("Undo", async () => {
    undo.disabled = true;
    if (await send(answer, { withdrawn: true })) settle(answer, null);
    else undo.disabled = false;
  });
  return [words, undo];
}

/** The other labels: the likeliest ones, or those that contain what is typed; and none of them. */
function chooser(answer, close) {
  const node = element("div", "chooser");
  const labels = factsOf(answer.model?.name).labels ?? [];
  const list = element("div", "row choices");
  const choose = (label, class_id) => report(answer, { class_id }, `Labelled ${label}`, node);
  const fill = (part) => {
    const likely = answer.result.predictions.slice(1);
    const found = part ? matches(labels, part, answer.best.class_id) : likely.slice(0, OFFERED);
    list.replaceChildren(
      ...found.slice(0, OFFERED).map(({ label, class_id }) => button(label, () => choose(label, class_id))),
      button("None of these", () => report(answer, { wrong: true }, "Reported as wrong", node)),
    );
  };
  const find = searchField("Find the right label", `Search ${count(labels.length)} labels`, fill);
  find.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !find.value.trim()) return;
    event.preventDefault();
    if (list.children.length > 1) list.firstElementChild.click();
  });
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    // The viewer behind it stays open.
    event.preventDefault();
    event.stopPropagation();
    close();
  });
  fill("");
  node.append(...(labels.length ? [find] : []), list);
  return node;
}

/** Classes whose label contains a text, those that begin with it first. */
export function matches(labels, part, excluded = -1) {
  const found = labels.map((label, class_id) => ({ label, class_id })).filter(({ label, class_id }) => class_id !== excluded && label.toLowerCase().includes(part));
  const later = ({ label }) => Number(!label.toLowerCase().startsWith(part));
  return found.sort((one, other) => later(one) - later(other));
}

async function report(answer, members, words, node) {
  for (const each of node.querySelectorAll("button")) each.disabled = true;
  if (await send(answer, members)) {
    settle(answer, words);
    return;
  }
  for (const each of node.querySelectorAll("button")) each.disabled = false;
  tellFailure(node.lastElementChild, "Not reported. Try again.");
}

/** Draw an answer's feedback wherever it is shown. */
function settle(answer, words) {
  answer.reported = words;
  for (const draw of drawers.get(answer) ?? []) draw();
}

async function send({ requestId, result, model }, members) {
  try {
    const body = JSON.stringify({ request_id: requestId, index: result.index, model: model.name, ...members });
    const headers = { ...withKey(), "Content-Type": "application/json" };
    return (await fetch("feedback", { method: "POST", headers, body })).ok;
  } catch {
    return false;
  }
}
