// The results: progress, filters, and a card for each file.

import { Cards } from "./cards.js";
import { least, queries } from "./choice.js";
import { $, element } from "./dom.js";
import { entryNames, filterEntries, modelWords } from "./filters.js";
import { bytes, count, duration, images, rate } from "./words.js";

const CARDS = 48;
const CHIPS = 14;
const ANNOUNCE_MS = 5_000;
/** Share of the window's height above which the first card must begin to count as seen. */
const LOWEST = 0.7;

export function announce(text) {
  $("live").textContent = text;
}

/** The part of the page below the parameters; `open` is called with the entry whose image was clicked. */
export class Results {
  #cards;
  #limit = CARDS;
  #allChips = false;
  #announcedAt = 0;
  #choice = { kind: "all", label: "" };
  #shown = [];
  #scrolledTo = null;

  constructor({ open, changed }) {
    this.#cards = new Cards($("cards"), $("card"), open);
    const choose = (choice) => {
      Object.assign(this.#choice, choice);
      this.#limit = CARDS;
      changed();
    };
    $("kinds").addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button) choose({ kind: button.dataset.kind, label: "" });
    });
    $("labels").addEventListener("click", ({ target }) => {
      const { label } = target.closest("button")?.dataset ?? {};
      if (label !== undefined) choose({ label: label === this.#choice.label ? "" : label });
    });
    $("all-labels").addEventListener("click", () => {
      this.#allChips = !this.#allChips;
      changed();
    });
    $("more").addEventListener("click", () => {
      this.#limit += CARDS;
      changed();
    });
  }

  /** The entries to page through, in the order of their cards. */
  get shown() {
    return this.#shown;
  }

  /** Remove all results. */
  reset() {
    Object.assign(this.#choice, { kind: "all", label: "" });
    [this.#limit, this.#allChips] = [CARDS, false];
  }

  draw(entries, run) {
    const running = run?.running ?? false;
    $("results").hidden = !entries.length;
    $("results").classList.toggle("running", running);
    const filtered = this.#filter(entries);
    this.#drawProgress(entries, run, filtered.counts);
    this.#drawTools(entries, running);
    this.#drawKinds(filtered);
    this.#drawLabels(filtered, entries.length);
    this.#drawCards(filtered, entries);
    this.#showFirst(run);
  }

  #filter(entries) {
    const filtered = filterEntries(entries, { ...this.#choice, least: least() });
    // The selected label may no longer exist: retried, cleared, or below the lowest score.
    const gone = this.#choice.kind !== "all" && !filtered.counts[this.#choice.kind];
    const labelGone = this.#choice.label && !filtered.labels.some(([label]) => label === this.#choice.label);
    if (!gone && !labelGone) return filtered;
    Object.assign(this.#choice, { label: "", ...(gone ? { kind: "all" } : {}) });
    return filterEntries(entries, { ...this.#choice, least: least() });
  }

  #drawProgress(entries, run, { ok, error }) {
    const running = run?.running ?? false;
    const done = run?.answered ?? 0;
    const total = run?.answers.size || 1;
    const upload = run?.bytes ?? { sent: 0, total: 0 };
    Object.assign($("progress"), { max: total, value: done });
    Object.assign($("upload"), { max: upload.total || 1, value: upload.sent });
    for (const id of ["progress", "upload"]) $("results").style.setProperty(`--${id}`, `${$(id).position * 100}%`);
    $("tally").textContent = running
      ? `${count(done)} of ${count(total)}`
      : `${count(ok)} classified${error ? `, ${count(error)} failed` : ""}`;
    $("waiting").textContent = run?.waiting ?? "";
    $("pace").textContent = "";
    if (!run) return;
    const answers = entries.some((entry) => entry.answers.length > 1) ? `${count(done)} answers` : images(done);
    const took = running ? duration(run.seconds) : `${answers} in ${duration(run.seconds)}`;
    const sending = running && upload.sent < upload.total ? `, ${bytes(upload.sent)} of ${bytes(upload.total)} sent` : "";
    $("pace").textContent = (done > 1 && run.seconds > 0.5 ? `${took}, ${rate(done / run.seconds)}` : took) + sending;
    if (running && performance.now() - this.#announcedAt > ANNOUNCE_MS) {
      this.#announcedAt = performance.now();
      announce(`${count(done)} of ${images(total)} answered`);
    }
  }

  #drawTools(entries, running) {
    const current = queries().join(" ");
    const changed = entries.some((entry) => entry.answers.map((answer) => answer.query).join(" ") !== current);
    $("stop").hidden = !running;
    $("retry").hidden = running || !entries.some((entry) => entry.answers.some((answer) => answer.retryable));
    $("again").hidden = $("saves").hidden = running || !entries.length;
    $("again").classList.toggle("primary", changed);
    $("again").textContent = changed ? "Run again with these settings" : "Run again";
  }

  #drawKinds({ counts }) {
    $("filters").hidden = counts.all < 2;
    for (const button of $("kinds").children) {
      const { kind } = button.dataset;
      button.dataset.count = count(counts[kind]);
      button.hidden = kind !== "all" && !counts[kind] && kind !== this.#choice.kind;
      button.setAttribute("aria-pressed", String(kind === this.#choice.kind));
    }
  }

  #drawLabels({ labels }, files) {
    const chips = this.#allChips ? labels : labels.slice(0, CHIPS);
    if (this.#choice.label && !chips.some(([label]) => label === this.#choice.label)) {
      chips.push(labels.find(([label]) => label === this.#choice.label));
    }
    const nodes = chips.map(([label, number], position) => {
      const chip = $("labels").children[position] ?? element("button", "chip");
      if (chip.dataset.label !== label) {
        chip.type = "button";
        chip.dataset.label = label;
        chip.replaceChildren(element("span", "chip-label", label), element("span", "chip-count"));
      }
      chip.lastElementChild.textContent = count(number);
      chip.setAttribute("aria-pressed", String(label === this.#choice.label));
      return chip;
    });
    while ($("labels").children.length > nodes.length) $("labels").lastElementChild.remove();
    for (const [position, node] of nodes.entries()) if ($("labels").children[position] !== node) $("labels").append(node);
    $("label-row").hidden = files < 2 || !labels.length;
    $("all-labels").hidden = labels.length <= CHIPS;
    $("all-labels").textContent = this.#allChips ? "Fewer labels" : `All ${count(labels.length)} labels`;
  }

  /** Scroll to the cards once the first answer of a run is there, unless one of them is in the window. */
  #showFirst(run) {
    if (!run?.answered || run === this.#scrolledTo) return;
    this.#scrolledTo = run;
    const { top } = $("cards").getBoundingClientRect();
    if (top < 0 || top > innerHeight * LOWEST) $("results").scrollIntoView({ behavior: "smooth" });
  }

  #drawCards({ files }, entries) {
    this.#shown = files;
    this.#cards.show(files.slice(0, this.#limit), { least: least(), names: entryNames(entries), models: modelWords(entries) });
    const hidden = this.#shown.length - this.#limit;
    $("more").hidden = hidden <= 0;
    $("more").textContent = `Show ${count(Math.min(CARDS, hidden))} more of ${count(hidden)}`;
    $("none").hidden = this.#shown.length > 0;
  }
}
