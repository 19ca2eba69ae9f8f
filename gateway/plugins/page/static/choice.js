// The choice: images or a camera, the model, a second one to compare, the number of labels; as code and in the URL.

import { $, copy } from "./dom.js";
import { keyWanted } from "./key.js";
import { chosenModel } from "./service.js";
import { curl, percent, pythonClient } from "./words.js";

const NAMES = 3;
const PRESET = "top_k=5";
const SMOOTHING = "exponential";

const TABS = ["images", "camera"];
const tabs = TABS.map((name) => $(`tab-${name}`));

let language = "curl";
let wheel = new URL("client/", document.baseURI).href;

/** The lowest score of a label that is shown. */
export const least = () => Number($("least").value);

/** The parameters of each request for a file: one request, or two if models are compared. */
export function queries() {
  const first = query($("model").selectedOptions[0]);
  const other = $("compare").selectedOptions[0];
  if (!other?.value) return [first];
  const second = query(other);
  return second === first ? [first] : [first, second];
}

/** The parameters of a camera's stream. */
export function cameraQuery() {
  const parameters = new URLSearchParams(query($("model").selectedOptions[0]));
  if ($("smoothing").value !== SMOOTHING) parameters.set("smoothing", $("smoothing").value);
  return parameters.toString();
}

function query(chosen) {
  const parameters = new URLSearchParams();
  if ($("top-k").value) parameters.set("top_k", $("top-k").value);
  const { model, version } = chosen.dataset;
  if (model) parameters.set("model", model);
  if (version) parameters.set("version", version);
  return parameters.toString();
}

/** Read the choice from the URL; the models follow when the service has listed them. */
export function takeAddress() {
  const query = new URLSearchParams(location.search);
  if ([...$("top-k").options].some((option) => option.value === query.get("top_k"))) $("top-k").value = query.get("top_k");
  const threshold = Number(query.get("threshold"));
  if (threshold > 0 && threshold < 1) $("least").value = threshold;
  if ([...$("smoothing").options].some((option) => option.value === query.get("smoothing"))) $("smoothing").value = query.get("smoothing");
}

/** Write the choice into the URL, so that it can be shared. */
export function share() {
  const onCamera = tabShown() === "camera";
  const address = new URLSearchParams(onCamera ? cameraQuery() : queries()[0]);
  if (least()) address.set("threshold", least());
  const other = $("compare").selectedOptions[0];
  if (other?.value) address.set("compare", other.value);
  if (onCamera) address.set("tab", "camera");
  history.replaceState(null, "", address.toString() === PRESET ? location.pathname : `?${address}`);
}

/** Show the choice as code, for files of these names. */
export function drawAsked(all) {
  $("least-value").textContent = least() ? percent(least()) : "any";
  $("least").setAttribute("aria-valuetext", least() ? percent(least()) : "any score");
  $("choice").textContent = choiceInWords(tabShown() === "camera");
  const code = imagesCode(all.length ? all.slice(0, NAMES) : ["cat.jpg"]);
  if ($("code").value !== code) $("code").value = code;
  $("code").rows = code.split("\n").length;
  $("code-label").textContent = all.length > NAMES ? "The first three in code" : "The same in code";
  for (const button of $("languages").children) button.setAttribute("aria-pressed", String(button.dataset.language === language));
}

const base = () => new URL(".", document.baseURI).href.replace(/\/$/, "");
const keyName = () => (keyWanted() ? "KEY" : "");

function withLeast(query) {
  const parameters = new URLSearchParams(query);
  if (least()) parameters.set("threshold", least());
  return parameters;
}

function imagesCode(names) {
  const parameters = withLeast(queries()[0]);
  const url = new URL(`predict?${parameters}`, document.baseURI).href;
  return language === "curl" ? curl(url, names, keyName()) : pythonClient(base(), wheel, parameters, names, keyName());
}

/** The settings that are not those of a new page, in one line; the model has its card. */
function choiceInWords(onCamera) {
  const compared = !onCamera && $("compare").value ? [`compared with ${$("compare").selectedOptions[0].text}`] : [];
  const labels = { "": ["all likely labels"], 5: [] }[$("top-k").value] ?? [`top ${$("top-k").value}`];
  return [...compared, ...labels, ...(least() ? [`from ${percent(least())}`] : [])].join(", ");
}

/** The address of this page with the settings and, also for the default model, with the model. */
function link() {
  const address = new URL(location.href);
  if (!address.searchParams.has("model") && chosenModel()) address.searchParams.set("model", chosenModel());
  return address.href;
}

const FRAME = 'width="100%" height="840" style="border: 0" allow="camera; clipboard-write" loading="lazy"';
/** The page in a frame of another page, high enough for an example with its answer. */
function embedded() {
  const [address, title] = [link(), $("about-name").textContent].map((text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;"));
  return `<iframe src="${address}" title="${title}" ${FRAME}></iframe>`;
}

/** A multi-label model selects the likely labels itself. */
function offerLikely() {
  const likely = $("likely");
  likely.hidden = !$("model").selectedOptions[0].dataset.multiLabel;
  if (likely.selected === likely.hidden) $("top-k").value = likely.hidden ? "5" : "";
}

/** Replace the address of the client's folder by that of its wheel, whose name has the version. */
async function findWheel() {
  if (wheel.endsWith(".whl")) return;
  const response = await fetch(wheel).catch(() => null);
  const [, name] = (response?.ok && (await response.text()).match(/href="([^"#]+\.whl)/)) || [];
  if (name) wheel = new URL(name, wheel).href;
}

/** Listen to the fields; `changed` is called after each change. */
export function onChoice(changed) {
  $("languages").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    language = button.dataset.language;
    changed();
    if (language === "python") findWheel().then(changed);
  });
  $("model").addEventListener("change", offerLikely);
  $("model").addEventListener("listed", () => {
    offerLikely();
    changed();
  });
  for (const [id, type] of [["model", "change"], ["compare", "change"], ["top-k", "change"], ["smoothing", "change"], ["least", "input"]]) {
    $(id).addEventListener(type, () => {
      share();
      changed();
    });
  }
  $("copy").addEventListener("click", () => copy($("code").value, $("copy")));
  $("link").addEventListener("click", () => copy(link(), $("link")));
  $("embed").addEventListener("click", () => copy(embedded(), $("embed")));
}

export const tabShown = () => $("main").dataset.tab;

/** Listen to the tabs (WAI-ARIA Authoring Practices, "Tabs"), and show the one in the page's URL; `shown` is called with the name of each tab that is opened. */
export function watchTabs(shown) {
  watchTabs.shown = shown;
  for (const [position, tab] of tabs.entries()) {
    tab.addEventListener("click", () => showTab(TABS[position]));
    tab.addEventListener("keydown", ({ key }) => {
      const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: -1 }[key];
      if (to === undefined) return;
      showTab(TABS.at(to % TABS.length));
      $(`tab-${tabShown()}`).focus();
    });
  }
  const tab = new URLSearchParams(location.search).get("tab");
  if (TABS.includes(tab)) showTab(tab);
}

export function showTab(name) {
  if (name === tabShown()) return;
  $("main").dataset.tab = name;
  for (const [position, tab] of tabs.entries()) {
    const selected = TABS[position] === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    $(TABS[position]).hidden = !selected;
  }
  watchTabs.shown(name);
}
