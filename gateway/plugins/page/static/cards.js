// One card for each file: its picture, drawn small and only while it is near the window, and its answer.

import { element } from "./dom.js";
import { verdictNode } from "./feedback.js";
import { differs } from "./filters.js";
import { bytes, count, percent } from "./words.js";

const THUMB_WIDTH = 640;
const THUMBS_AT_ONCE = 2;
const LARGEST_PREVIEW_BYTES = 64 * 2 ** 20;
/** Pixels of a side below which a picture is not cropped. */
const SMALL = 160;

const part = (card, name) => card.querySelector(`.${name}`);

/** The list of cards; `open` is called with the entry whose picture was clicked. */
export class Cards {
  #list;
  #template;
  #open;
  #cards = new WeakMap();
  #wanted = new Set();
  #drawing = 0;
  #nearby;

  constructor(list, template, open) {
    this.#list = list;
    this.#template = template;
    this.#open = open;
    // Thousands of large photographs would fill the memory, so a picture is released when its card is scrolled away.
    this.#nearby = new IntersectionObserver((records) => this.#moved(records), { rootMargin: "400px" });
  }

  /**
   * Show these entries as cards, in this order. Predictions below `least` are left out; `names` gives the name of an
   * entry, and `models` the words for the model of an answer.
   */
  show(entries, { least, names, models }) {
    entries.forEach((entry, position) => {
      const card = this.#card(entry, least, names(entry), models);
      const there = this.#list.children[position] ?? null;
      if (there !== card) this.#list.insertBefore(card, there);
    });
    while (this.#list.children.length > entries.length) {
      this.#forget(this.#list.lastElementChild);
      this.#list.lastElementChild.remove();
    }
  }

  #card(entry, least, name, models) {
    let card = this.#cards.get(entry);
    if (!card) {
      card = this.#template.content.firstElementChild.cloneNode(true);
      card.entry = entry;
      part(card, "kind").textContent = kind(entry.file);
      part(card, "thumb").setAttribute("aria-label", `Open ${entry.name}`);
      part(card, "thumb").addEventListener("click", () => this.#open(entry));
      this.#cards.set(entry, card);
      this.#nearby.observe(card);
    }
    if (card.named !== name) {
      card.named = part(card, "name").textContent = part(card, "name").title = name;
    }
    const shown = entry.answers.flatMap((answer) => {
      const { state, result, error } = answer;
      return [state === "sent" ? "waiting" : (error ?? result ?? state), models(answer)];
    });
    const same = card.shown?.length === shown.length && card.shown.every((each, position) => each === shown[position]);
    if (same && card.least === least) return card;
    Object.assign(card, { shown, least });
    card.dataset.state = entry.state;
    const { width, height } = entry.first.result ?? {};
    part(card, "facts").textContent = [...(width ? [`${width} × ${height}`] : []), bytes(entry.file.size)].join(", ");
    // Small images are not cropped: cropped and enlarged, they could not be recognised.
    card.toggleAttribute("data-small", width !== undefined && (width < SMALL || height < SMALL));
    part(card, "disagree").hidden = !differs(entry, least);
    part(card, "answers").replaceChildren(...entry.answers.map((answer) => answerNode(answer, { least, folded: true, words: models(answer) })));
    return card;
  }

  #moved(records) {
    for (const { target, isIntersecting } of records) {
      if (isIntersecting) this.#wanted.add(target);
      else this.#forget(target);
    }
    this.#drawWanted();
  }

  #drawWanted() {
    for (const card of this.#wanted) {
      if (this.#drawing >= THUMBS_AT_ONCE) return;
      this.#wanted.delete(card);
      if (card.entry.previewable === false || !part(card, "picture").hidden) continue;
      this.#drawing += 1;
      draw(card).finally(() => {
        this.#drawing -= 1;
        this.#drawWanted();
      });
    }
  }

  #forget(card) {
    this.#wanted.delete(card);
    const canvas = part(card, "picture");
    canvas.hidden = true;
    canvas.width = canvas.height = 0;
  }
}

/** Draw the card's picture, or mark it as not displayable. */
async function draw(card) {
  const { entry } = card;
  try {
    if (entry.file.size > LARGEST_PREVIEW_BYTES) throw new RangeError("too large to preview");
    const bitmap = await createImageBitmap(entry.file, { resizeWidth: THUMB_WIDTH, resizeQuality: "high" });
    const canvas = part(card, "picture");
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    entry.previewable = true;
    canvas.hidden = false;
  } catch {
    entry.previewable = false;
  }
}

function kind(file) {
  const dot = file.name.lastIndexOf(".");
  return dot > 0 && file.name.length - dot <= 6 ? file.name.slice(dot + 1).toUpperCase() : "File";
}

/**
 * One model's answer: its name in `words`, then its predictions with a score of at least `least`, or the reason why there
 * are none. If `folded`, all but the first prediction are shown on demand.
 */
export function answerNode(answer, { least = 0, folded = false, words = answer.modelInWords } = {}) {
  const predictions = answer.result?.predictions;
  const node = element("div", "answer");
  node.dataset.state = answer.state;
  if (words) node.append(element("p", "fine model", words));
  if (answer.state === "error") {
    const code = element("code", "", answer.error.code);
    if (answer.requestId) code.title = `Request ${answer.requestId}`;
    node.append(element("p", "error", answer.error.message), code);
  } else if (answer.state !== "ok") {
    const skeleton = element("div", "skeleton");
    skeleton.append(element("span", "unseen", answer.inWords));
    node.append(skeleton);
  } else {
    const likely = predictions.filter(({ score }) => score >= least);
    if (!likely.length) node.append(element("p", "unsure", least ? `No label reaches ${percent(least)}` : "No label is likely enough"));
    else if (folded) node.append(scores(likely.slice(0, 1)), ...(likely.length > 1 ? [rest(likely.slice(1))] : []));
    else node.append(scores(likely));
    const verdict = verdictNode(answer);
    if (verdict) node.append(verdict);
  }
  return node;
}

function rest(predictions) {
  const node = document.createElement("details");
  const words = element("summary", "", `${count(predictions.length)} more ${predictions.length === 1 ? "label" : "labels"}`);
  node.append(words, scores(predictions));
  return node;
}

/** Predictions as a list with bars. */
export function scores(predictions) {
  const list = element("ol", "scores");
  for (const { label, class_id, score } of predictions) {
    const row = element("li", "");
    const name = element("span", "label", label);
    name.title = `${label}, class ${class_id}`;
    const bar = element("span", "bar");
    const fill = element("span", "fill");
    fill.style.width = `${Math.min(100, Math.max(0, score * 100))}%`;
    bar.append(fill);
    row.append(name, element("span", "score", percent(score)), bar);
    list.append(row);
  }
  return list;
}
