// One card for each file: its picture, drawn small and only while it is near the window, and its answer.

import { bytes, percent } from "./words.js";

const THUMB_WIDTH = 640;
const THUMBS_AT_ONCE = 2;
const LARGEST_PREVIEW_BYTES = 64 * 2 ** 20;
const SKELETON_ROWS = 5;

export function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

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
    // Thousands of large photographs would fill the memory, so a picture is let go when its card leaves.
    this.#nearby = new IntersectionObserver((records) => this.#moved(records), { rootMargin: "400px" });
  }

  /** Show these entries, in this order. */
  show(entries) {
    entries.forEach((entry, position) => {
      const card = this.#card(entry);
      const there = this.#list.children[position] ?? null;
      if (there !== card) this.#list.insertBefore(card, there);
    });
    while (this.#list.children.length > entries.length) {
      const card = this.#list.lastElementChild;
      this.#forget(card);
      card.remove();
    }
  }

  #card(entry) {
    let card = this.#cards.get(entry);
    if (!card) {
      card = this.#template.content.firstElementChild.cloneNode(true);
      card.entry = entry;
      part(card, "name").textContent = part(card, "name").title = entry.name;
      part(card, "kind").textContent = kind(entry.file);
      part(card, "thumb").setAttribute("aria-label", `Enlarge ${entry.name}`);
      part(card, "thumb").addEventListener("click", () => this.#open(entry));
      this.#cards.set(entry, card);
      this.#nearby.observe(card);
    }
    const state = entry.done ? entry.state : "waiting";
    const shown = entry.error ?? entry.result;
    if (card.shown !== shown || card.dataset.state !== state) {
      card.shown = shown;
      card.dataset.state = state;
      const { width, height } = entry.result ?? {};
      const facts = [...(width ? [`${width} × ${height}`] : []), bytes(entry.file.size)];
      if (entry.modelInWords) facts.push(entry.modelInWords);
      part(card, "facts").textContent = facts.join(", ");
      part(card, "answer").replaceChildren(...answer(entry));
    }
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

/** Draw the card's picture, or note that the browser cannot. */
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
    part(card, "thumb").disabled = false;
  } catch {
    entry.previewable = false;
  }
}

function kind(file) {
  const dot = file.name.lastIndexOf(".");
  return dot > 0 && file.name.length - dot <= 6 ? file.name.slice(dot + 1).toUpperCase() : "File";
}

function answer(entry) {
  if (entry.state === "error") {
    const code = element("code", "", entry.error.code);
    if (entry.requestId) code.title = `Request ${entry.requestId}`;
    return [element("p", "error", entry.error.message), code];
  }
  if (entry.state !== "ok") {
    const skeleton = element("div", "skeleton");
    skeleton.append(element("span", "unseen", entry.inWords));
    for (let row = 0; row < SKELETON_ROWS; row += 1) skeleton.append(element("i", ""));
    return [skeleton];
  }
  const scores = element("ol", "scores");
  for (const { label, class_id, score } of entry.result.predictions) {
    const row = element("li", "");
    const name = element("span", "label", label);
    name.title = `${label}, class ${class_id}`;
    const bar = element("span", "bar");
    const fill = element("span", "fill");
    fill.style.width = `${Math.min(100, Math.max(0, score * 100))}%`;
    bar.append(fill);
    row.append(name, element("span", "score", percent(score)), bar);
    scores.append(row);
  }
  return [scores];
}
