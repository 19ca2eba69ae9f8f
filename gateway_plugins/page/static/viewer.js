// The dialog with one image in full, the part that the model saw, all labels, and the maps that explain them.

import { answerNode, element, scores } from "./cards.js";
import { least } from "./choice.js";
import { withoutFrames } from "./entry.js";
import { explain, isExplained, mapNode } from "./explain.js";
import { withKey } from "./key.js";
import { factsOf } from "./service.js";
import { seen } from "./filters.js";
import { bytes, count, percent } from "./words.js";

const PREVIEW_WIDTH = 160;
/** How many times a picture is enlarged before its pixels are shown as squares. */
const PIXELATED = 4;
const NARROW = matchMedia("(max-width: 860px)");
const WHY = "Why?";

const $ = (id) => document.getElementById(id);

/** `entries` returns the entries to page through, `names` the function that gives the name of each. */
export class Viewer {
  #entries;
  #names;
  #entry = null;
  /** Whether the browser can show the picture. */
  #shows = true;
  /** Ends the explanations that are requested. */
  #leaving = new AbortController();

  constructor(entries, names) {
    this.#entries = entries;
    this.#names = names;
    $("viewer-close").addEventListener("click", () => $("viewer").close());
    $("viewer-previous").addEventListener("click", () => this.#step(-1));
    $("viewer-next").addEventListener("click", () => this.#step(1));
    $("viewer").addEventListener("close", () => this.#release());
    $("viewer").addEventListener("keydown", (event) => {
      if (event.target.closest("input")) return;
      if (event.key === "ArrowLeft") this.#step(-1);
      if (event.key === "ArrowRight") this.#step(1);
    });
    $("viewer").addEventListener("click", (event) => {
      if (event.target === $("viewer")) $("viewer").close();
    });
    $("viewer-image").addEventListener("load", () => {
      enlarge($("viewer-image"));
      this.#drawSeen();
      this.#drawMaps();
    });
    addEventListener("resize", () => enlarge($("viewer-image")));
    $("viewer-image").addEventListener("error", () => this.#showPicture(false));
    $("viewer-heat").addEventListener("input", () => $("viewer-maps").style.setProperty("--heat", $("viewer-heat").value));
  }

  open(entry) {
    this.#release();
    this.#entry = entry;
    $("viewer-name").textContent = this.#names()(entry);
    const { width, height } = entry.first.result ?? {};
    $("viewer-facts").textContent = [...(width ? [`${width} × ${height}`] : []), bytes(entry.file.size)].join(", ");
    $("viewer-previous").disabled = !this.#neighbour(-1);
    $("viewer-next").disabled = !this.#neighbour(1);
    $("viewer-answers").replaceChildren(...entry.answers.map((answer) => this.#answer(answer)));
    for (const figure of document.querySelectorAll(".seen")) figure.hidden = true;
    this.#showPicture(true);
    $("viewer-image").src = URL.createObjectURL(entry.file);
    $("viewer-image").alt = entry.name;
    this.#drawMaps();
    if (!$("viewer").open) $("viewer").showModal();
  }

  #showPicture(can) {
    this.#shows = can;
    this.#arrange();
    $("viewer-frame").hidden = true;
  }

  /** Show the picture, or instead of it the maps over its copies. */
  #arrange() {
    const mapped = $("viewer-maps").children.length > 0;
    $("viewer-maps").hidden = $("viewer-strength").hidden = !mapped;
    $("viewer-picture").hidden = mapped || !this.#shows;
    $("viewer-none").hidden = mapped || this.#shows;
  }

  #drawMaps() {
    const explained = (this.#entry?.answers ?? []).filter(isExplained);
    $("viewer-maps").replaceChildren(...explained.map((answer) => mapNode(answer, $("viewer-image"))));
    this.#arrange();
  }

  /** An answer, with a button that requests all labels. */
  #answer(answer) {
    const section = element("section", "viewer-answer");
    const node = answerNode(answer, { least: least() });
    section.append(node);
    const { frames = [] } = answer.result ?? {};
    if (frames.length > 1) section.append(framesNode(frames));
    if (answer.state === "ok") {
      const button = element("button", "small", "All labels");
      button.type = "button";
      button.addEventListener("click", () => this.#showAll(answer, button));
      section.append(button);
    }
    if (answer.state === "ok" && answer.best && !isExplained(answer)) section.append(this.#whyButton(answer));
    return section;
  }

  /** A button that requests the map of an answer's best label. */
  #whyButton(answer) {
    const button = element("button", "small", WHY);
    button.type = "button";
    button.title = `Show which parts of the picture raise the score of “${answer.best.label}”`;
    button.addEventListener("click", async () => {
      const { signal } = this.#leaving;
      button.disabled = true;
      button.textContent = "Explaining";
      button.parentElement.querySelector(".unexplained")?.remove();
      try {
        await explain(answer, {
          signal,
          progress: (share) => (button.textContent = `Explaining, ${Math.round(share * 100)}%`),
        });
        if (signal.aborted) return;
        button.remove();
        this.#drawMaps();
      } catch (error) {
        if (signal.aborted) return;
        button.disabled = false;
        button.textContent = WHY;
        const words = error instanceof TypeError ? "The gateway does not answer." : error.message;
        const problem = element("p", "problem unexplained", words);
        problem.setAttribute("role", "alert");
        button.after(problem);
      }
    });
    return button;
  }

  async #showAll(answer, button) {
    button.disabled = true;
    button.textContent = "Loading";
    try {
      const all = element("div", "every");
      const list = scores(await everyLabel(answer));
      list.tabIndex = 0;
      list.setAttribute("aria-label", `Every label of ${answer.entry.name}`);
      const find = element("input", "find");
      Object.assign(find, { type: "search", placeholder: `Search ${count(list.children.length)} labels` });
      find.setAttribute("aria-label", "Find a label");
      find.addEventListener("input", () => {
        const part = find.value.trim().toLowerCase();
        for (const row of list.children) row.hidden = !row.firstElementChild.textContent.toLowerCase().includes(part);
      });
      all.append(find, list);
      button.parentElement.querySelector(".scores, .unsure")?.replaceWith(all);
      button.remove();
    } catch (error) {
      button.disabled = false;
      button.textContent = "All labels";
      const problem = element("p", "problem", error.message);
      problem.setAttribute("role", "alert");
      button.parentElement.querySelector(".problem")?.remove();
      button.after(problem);
    }
  }

  /** Draw a frame around the part that the model saw, and the picture as the model received it. */
  #drawSeen() {
    const size = { width: $("viewer-image").naturalWidth, height: $("viewer-image").naturalHeight };
    for (const figure of document.querySelectorAll(".seen.other")) figure.remove();
    const answers = this.#entry?.answers ?? [];
    const views = answers.flatMap(({ model }) => {
      const facts = factsOf(model?.name);
      const part = seen(size, facts);
      return part ? [{ name: model.name, part, width: facts.input_width, height: facts.input_height }] : [];
    });
    const [view, other] = views;
    if (!view) return;
    const frame = $("viewer-frame");
    frame.hidden = isWhole(view);
    for (const [side, share] of Object.entries(view.part)) frame.style[side] = `${share * 100}%`;
    const alike = other ? same(view, other) : answers.length === 1;
    this.#showSeen($("viewer-seen"), view, {
      title: alike ? "What the model saw" : `What ${view.name} saw`,
      words: isWhole(view) ? "The whole picture" : "What is in the frame",
    });
    if (alike || !other) return;
    const figure = $("viewer-seen").cloneNode(true);
    figure.classList.add("other");
    for (const node of [figure, ...figure.querySelectorAll("[id]")]) node.removeAttribute("id");
    const { width, height } = other.part;
    const middle = `From the middle ${percent(width)} of the width, ${percent(height)} of the height`;
    this.#showSeen(figure, other, { title: `What ${other.name} saw`, words: isWhole(other) ? "The whole picture" : middle });
    $("viewer-seen").after(figure);
  }

  #showSeen(figure, { part, width, height }, { title, words }) {
    const image = $("viewer-image");
    const canvas = figure.querySelector("canvas");
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${Math.min(width, PREVIEW_WIDTH)}px`;
    const [across, down] = [image.naturalWidth, image.naturalHeight];
    const from = [part.left * across, part.top * down, part.width * across, part.height * down];
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, ...from, 0, 0, width, height);
    figure.querySelector("strong").textContent = title;
    figure.querySelector("figcaption span").textContent = `${words}, at ${width} × ${height}`;
    figure.hidden = false;
  }

  #release() {
    if (this.#entry) URL.revokeObjectURL($("viewer-image").src);
    $("viewer-image").removeAttribute("src");
    this.#leaving.abort();
    this.#leaving = new AbortController();
    this.#entry = null;
    this.#drawMaps();
  }

  #neighbour(step) {
    const entries = this.#entries();
    const position = entries.indexOf(this.#entry);
    return position < 0 ? undefined : entries[position + step];
  }

  #step(step) {
    const entry = this.#neighbour(step);
    if (entry) this.open(entry);
  }
}

/** Show a picture as large as its field allows; the pixels of a tiny one are squares. */
function enlarge(image) {
  const stage = document.querySelector("#viewer .stage");
  if (!image.naturalWidth || !stage.clientWidth) return;
  const { paddingLeft, paddingTop } = getComputedStyle(stage);
  const across = stage.clientWidth - 2 * parseFloat(paddingLeft);
  // Above the words, the field is as high as its picture.
  const field = NARROW.matches ? Infinity : stage.clientHeight - 2 * parseFloat(paddingTop);
  const down = Math.min(field, parseFloat(getComputedStyle(image).maxHeight));
  const times = Math.min(across / image.naturalWidth, down / image.naturalHeight);
  image.style.width = times > 1 ? `${Math.floor(image.naturalWidth * times)}px` : "";
  image.classList.toggle("enlarged", times > PIXELATED);
}

const isWhole = ({ part }) => part.width === 1 && part.height === 1;
const same = (one, other) =>
  one.width === other.width && one.height === other.height && one.part.width === other.part.width && one.part.height === other.part.height;

/** The predictions of an animation over time. */
function framesNode(frames) {
  const node = element("div", "frames");
  const list = element("ol", "");
  for (const { time_s: seconds, predictions, error } of frames) {
    const row = element("li", "");
    const best = predictions.find(({ score }) => score >= least());
    row.append(element("span", "frame-time", seconds === null ? "–" : `${seconds.toFixed(1)} s`));
    row.append(element("span", "label", error ? error.message : best ? best.label : "No label is likely enough"));
    if (best) row.append(element("span", "score", percent(best.score)));
    list.append(row);
  }
  node.append(element("h3", "", "Frames, evenly spread"), list);
  return node;
}

/** All classes of the model that answered, or as many as the service returns; throws Error with its reason. */
async function everyLabel({ entry, query, model }) {
  const parameters = new URLSearchParams(withoutFrames(query));
  parameters.set("top_k", Math.min(factsOf(model?.name).classes ?? Infinity, await mostLabels()));
  parameters.set("threshold", 0);
  const body = new FormData();
  body.append("files", entry.file, entry.name);
  const response = await fetch(`predict?${parameters}`, { method: "POST", body, headers: withKey() }).catch(() => null);
  if (!response) throw new Error("The gateway does not answer.");
  const answer = await response.json().catch(() => ({}));
  const [result] = answer.results ?? [];
  if (result?.status !== "ok") throw new Error(result?.error.message ?? answer.detail ?? `The gateway answered ${response.status}.`);
  return result.predictions;
}

/** The most labels that the service returns for an image. */
async function mostLabels() {
  const response = await fetch("limits", { headers: withKey() }).catch(() => null);
  const { limits = [] } = response?.ok ? await response.json() : {};
  return limits.find(({ name }) => name === "max_top_k")?.value ?? 1;
}
