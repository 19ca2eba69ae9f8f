// The page to label logged images: one after the other, by keys; progress, accuracy and drift beside it.

import { curve } from "./curve.js";
import { matches } from "./feedback.js";
import { askForKey, keyRefused, onKey, UNAUTHORIZED, withKey } from "./key.js";
import { count, percent } from "./words.js";

const CHOICES = 9;
const OVERVIEW_MS = 30_000;

const $ = (id) => document.getElementById(id);

/** The names of all classes of the chosen model. */
let labels = [];
/** The image on the page, those that come again after an undo, the next new one (a promise), and those before. */
let current = null;
let ahead = [];
let following = null;
let past = [];
/** Classes that were chosen lately, which have keys as well. */
let recent = [];
let labelledHere = 0;
let busy = false;
/** Counts the changes of the model: what was asked for another one is dropped. */
let turn = 0;

/** JSON of this service; throws Error with its reason. */
async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: withKey(options.headers) }).catch(() => null);
  if (!response) throw new Error("The gateway does not answer.");
  askForKey(response);
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw new Error(answer.code === UNAUTHORIZED ? keyRefused() : (answer.detail ?? `The gateway answered ${response.status}.`));
}

const ofModel = (more = {}) => new URLSearchParams({ model: $("model").value, ...more });

function tell(error) {
  $("notice").textContent = error?.message ?? "";
  $("notice").hidden = !error;
}

async function start() {
  try {
    const { models, default: preset } = await ask("models");
    const options = models.map(({ name }) => new Option(name, name, false, name === (new URLSearchParams(location.search).get("model") ?? preset)));
    $("model").replaceChildren(...options);
    $("model").disabled = false;
    start.models = models;
    await begin();
  } catch (error) {
    tell(error);
  }
}

/** Begin with the chosen model. */
async function begin() {
  turn += 1;
  labels = start.models.find(({ name }) => name === $("model").value)?.labels ?? [];
  [current, ahead, following, past, recent] = [null, [], null, [], []];
  $("work").hidden = true;
  await Promise.all([advance(), drawOverview()]);
}

/** Fetch the next image with its picture; null if none is left. */
async function fetchNext() {
  const { image } = await ask(`label/next?${ofModel()}`, { method: "POST" });
  if (!image) return null;
  const response = await fetch(`label/image?${ofModel({ path: image.image })}`, { headers: withKey() }).catch(() => null);
  // An image that was deleted meanwhile has nothing to label.
  if (response?.status === 404) return fetchNext();
  if (!response?.ok) throw new Error("The image cannot be read.");
  return { ...image, url: URL.createObjectURL(await response.blob()) };
}

/** Show the next image, and fetch the one after it meanwhile. */
async function advance() {
  const mine = turn;
  busy = true;
  try {
    if (ahead.length) current = ahead.shift();
    else {
      const next = await (following ?? fetchNext());
      if (mine !== turn) return;
      current = next;
      following = next && fetchNext();
      following?.catch(() => (following = null));
    }
    tell(null);
  } catch (error) {
    following = null;
    tell(error);
  } finally {
    busy = false;
  }
  draw();
}

function draw() {
  $("work").hidden = !current;
  $("empty").hidden = Boolean(current) || !$("notice").hidden;
  $("undo").disabled = !past.length;
  $("find").value = "";
  drawFound();
  if (!current) return;
  $("picture").hidden = false;
  $("no-picture").hidden = true;
  $("picture").src = current.url;
  const [best] = current.predictions;
  $("why").textContent = current.drawn ? "Chosen at random, for the accuracy" : `The model is unsure: ${best.label}, ${percent(best.score)}`;
  $("choices").replaceChildren(...offered().map((choice, position) => choiceNode(choice, position + 1)));
}

/** The classes with keys: what the model answered, then what was chosen lately. */
function offered() {
  const answered = current.predictions.map(({ class_id, label, score }) => ({ class_id, label: labels[class_id] ?? label, score }));
  const known = new Set(answered.map(({ class_id }) => class_id));
  return [...answered, ...recent.filter(({ class_id }) => !known.has(class_id))].slice(0, CHOICES);
}

function choiceNode({ class_id, label, score }, key) {
  const node = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  if (key) button.append(made("kbd", key));
  button.append(made("span", label, "choice"));
  if (score !== undefined) button.append(made("span", percent(score), "score"));
  button.addEventListener("click", () => give({ class_id }, label));
  node.append(button);
  return node;
}

function made(tag, text, className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

function drawFound() {
  const part = $("find").value.trim().toLowerCase();
  $("found").hidden = !part;
  $("found").replaceChildren(...(part ? matches(labels, part).slice(0, CHOICES).map((choice) => choiceNode(choice)) : []));
}

const feedback = (image, members) =>
  ask("feedback", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ request_id: image.request_id, index: image.index, model: image.model, ...members }),
  });

/** Send the label of the image, and show the next one. */
async function give(members, label) {
  if (busy || !current) return;
  busy = true;
  try {
    await feedback(current, { ...members, ...(current.drawn ? { drawn: true } : {}) });
  } catch (error) {
    tell(error);
    busy = false;
    return;
  }
  labelledHere += 1;
  if (members.class_id !== undefined) recent = [{ class_id: members.class_id, label }, ...recent.filter(({ class_id }) => class_id !== members.class_id)].slice(0, CHOICES);
  past.push({ image: current, given: true });
  $("said").textContent = `Labelled ${label}`;
  drawTally();
  await advance();
}

async function skip() {
  if (busy || !current) return;
  past.push({ image: current, given: false });
  $("said").textContent = "Skipped";
  await advance();
}

/** Show the last image again, and take back its label. */
async function undo() {
  if (busy || !past.length) return;
  const { image, given } = past.at(-1);
  busy = true;
  try {
    if (given) await feedback(image, { withdrawn: true });
  } catch (error) {
    tell(error);
    return;
  } finally {
    busy = false;
  }
  past.pop();
  if (given) labelledHere -= 1;
  if (current) ahead.unshift(current);
  current = image;
  tell(null);
  $("said").textContent = given ? "The label was taken back" : "Back";
  drawTally();
  draw();
}

let overview = null;

async function drawOverview() {
  clearTimeout(drawOverview.timer);
  const mine = turn;
  try {
    const found = await ask(`label/overview?${ofModel()}`);
    if (mine !== turn) return;
    overview = found;
    overview.labelledHere = labelledHere;
    drawTally();
    drawCurves();
    // New images may be in the log, and leases of others may have ended.
    if (!current && !busy) await advance();
  } catch (error) {
    tell(error);
  }
  drawOverview.timer = setTimeout(() => !document.hidden && drawOverview(), OVERVIEW_MS);
}

function drawTally() {
  if (!overview) return;
  const { labelled, waiting } = overview;
  $("progress").max = Math.max(1, labelled + waiting);
  $("progress").value = Math.min(labelled + Math.max(0, labelledHere - overview.labelledHere), labelled + waiting);
  const here = labelledHere ? `, ${count(labelledHere)} of them now` : "";
  $("tally").textContent = `${count(labelled + Math.max(0, labelledHere - overview.labelledHere))} labelled${here}; ${count(waiting)} wait in the log`;
}

function drawCurves() {
  const { accuracy, drift } = overview;
  const images = accuracy.reduce((sum, day) => sum + day.images, 0);
  $("accuracy-words").textContent = images ? `Of ${count(images)} images chosen at random, with intervals of 95 %` : "Appears with the first labels of images chosen at random.";
  show("accuracy", accuracy, { most: 1, words: percent, title: "Accuracy by day" });
  $("drift-words").textContent = drift.length
    ? "Stability index of the classes against the first days; above the dashed line is more than chance"
    : "Appears once there are more days than those with the first 50 random images.";
  const most = Math.max(0.25, ...drift.map(({ high, chance }) => Math.max(high, chance)));
  show("drift", drift, { most, words: (value) => value.toFixed(2), title: "Drift by day" });
}

function show(name, points, options) {
  const open = $(name).querySelector("details")?.open ?? false;
  $(name).replaceChildren(...(points.length ? [curve(points, options)] : []));
  if (open) $(name).querySelector("details").open = true;
}

$("picture").addEventListener("error", () => {
  $("picture").hidden = true;
  $("no-picture").hidden = false;
});
$("model").addEventListener("change", begin);
$("none").addEventListener("click", () => give({ wrong: true }, "none of these"));
$("skip").addEventListener("click", skip);
$("undo").addEventListener("click", undo);
$("find").addEventListener("input", drawFound);
$("find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") $("found").querySelector("button")?.click();
  if (event.key !== "Enter" && event.key !== "Escape") return;
  event.preventDefault();
  $("find").blur();
  if (event.key === "Escape") {
    $("find").value = "";
    drawFound();
  }
});
addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  const press = { 0: $("none"), s: $("skip"), arrowright: $("skip"), u: $("undo"), arrowleft: $("undo") }[key] ?? (/^[1-9]$/.test(key) ? $("choices").children[key - 1]?.querySelector("button") : null);
  if (key === "/") $("find").focus();
  else if (!press) return;
  event.preventDefault();
  press?.click();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && overview) drawOverview();
});
onKey(start);
start();
