// The dialog with one image in full, the part that the model saw, all labels, and the maps that explain them.

import { answerNode, scores } from "./cards.js";
import { least } from "./choice.js";
import { $, button, element, searchField, whileWorking } from "./dom.js";
import { explain, isExplained, mapNode } from "./explain.js";
import { withKey } from "./key.js";
import { factsOf } from "./service.js";
import { seen } from "./filters.js";
import { bytes, count } from "./words.js";

/** How many times a picture is enlarged before its pixels are shown as squares. */
const PIXELATED = 4;
const NARROW = matchMedia("(max-width: 860px)");

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
    $("viewer-seen").textContent = "";
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

  /** An answer, with buttons that request all labels and the map of the best one. */
  #answer(answer) {
    const section = element("section", "viewer-answer");
    section.append(answerNode(answer, { least: least() }));
    if (answer.state !== "ok") return section;
    const buttons = element("div", "row");
    buttons.append(button("All labels", ({ target }) => whileWorking(target, "Loading", () => showAll(answer, section)), "small"));
    if (answer.best && !isExplained(answer)) buttons.append(this.#whyButton(answer));
    section.append(buttons);
    return section;
  }

  #whyButton(answer) {
    const node = button("Why?", () => whileWorking(node, "Explaining", () => this.#explain(answer)), "small");
    node.title = `Show which parts of the picture raise the score of “${answer.best.label}”`;
    return node;
  }

  async #explain(answer) {
    const { signal } = this.#leaving;
    await explain(answer, { signal });
    if (!signal.aborted) this.#drawMaps();
  }

  /** Draw a frame around the part that the first model saw, and say at which size. */
  #drawSeen() {
    const image = $("viewer-image");
    const { input_width: width, input_height: height, ...facts } = factsOf(this.#entry?.first.model?.name);
    const part = seen({ width: image.naturalWidth, height: image.naturalHeight }, facts);
    if (!part) return;
    const whole = part.width === 1 && part.height === 1;
    $("viewer-frame").hidden = whole;
    for (const [side, share] of Object.entries(part)) $("viewer-frame").style[side] = `${share * 100}%`;
    $("viewer-seen").textContent = `The model saw ${whole ? "the whole picture" : "what is in the frame"}, at ${width} × ${height}.`;
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

/** Show every label of an answer in its section, with a field to search them. */
async function showAll(answer, section) {
  const list = scores(await everyLabel(answer));
  list.tabIndex = 0;
  list.setAttribute("aria-label", `Every label of ${answer.entry.name}`);
  const find = searchField("Find a label", `Search ${count(list.children.length)} labels`, (part) => {
    for (const row of list.children) row.hidden = !row.firstElementChild.textContent.toLowerCase().includes(part);
  });
  const all = element("div", "every");
  all.append(find, list);
  section.querySelector(".scores, .unsure")?.replaceWith(all);
}

/** All classes of the model that answered, or as many as the service returns; throws Error with its reason. */
async function everyLabel({ entry, query, model }) {
  const parameters = new URLSearchParams(query);
  parameters.set("top_k", Math.min(factsOf(model?.name).classes ?? Infinity, await mostLabels()));
  parameters.set("threshold", 0);
  const body = new FormData();
  body.append("files", entry.file, entry.name);
  const response = await fetch(`predict?${parameters}`, { method: "POST", body, headers: withKey() });
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
