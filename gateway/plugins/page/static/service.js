// The state of the service: readiness and models.

import { $ } from "./dom.js";
import { askForKey, keyRefused, UNAUTHORIZED, withKey } from "./key.js";
import { duration } from "./words.js";

const READY_POLL_MS = 15_000;
const UNREADY_POLL_MS = 3_000;
const WORDS = { ready: "Ready", unready: "Not ready", away: "Not reachable" };

let timer = 0;
let modelsKnown = false;
let feedback = false;
/** The description of each model, by name; see GET /models. */
const described = new Map();
/** The model, and possibly the version, in the page's URL. */
const wanted = new URLSearchParams(location.search);

/** The description of a model, {} if it is unknown. */
export const factsOf = (name) => described.get(name) ?? {};

/** Whether the service takes feedback; false while the models are not known. */
export const takesFeedback = () => feedback;

/** The name of the chosen model, "" while the models are not known. */
export const chosenModel = () => $("model").selectedOptions[0]?.dataset.name ?? "";

/** Poll the readiness now, and then while the page is visible; the models are read once the service is ready. */
export async function watchHealth() {
  clearTimeout(timer);
  const { state, detail } = await health();
  const before = $("health").dataset.state;
  $("health").dataset.state = state;
  $("health").textContent = WORDS[state];
  $("health").title = `${detail} Click to check again.`;
  if (before !== state && before !== "checking") {
    $("health-change").textContent = `${WORDS[state]}. ${detail}`;
    if (state === "ready") $("health").dispatchEvent(new Event("ready"));
  }
  $("notice").hidden = state === "ready";
  const then = state === "away" ? "sent again as soon as it does" : "retried for a while";
  if (state !== "ready") $("notice").textContent = `${detail} Files that you add now are ${then}.`;
  if (state === "ready" && !modelsKnown) await readModels();
  else if (!modelsKnown) offerDefault("");
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(watchHealth, state === "ready" ? READY_POLL_MS : UNREADY_POLL_MS);
}

async function health() {
  let report;
  try {
    const response = await fetch("health/ready", { cache: "no-store", headers: withKey(), signal: AbortSignal.timeout(10_000) });
    report = await response.json();
  } catch {
    return { state: "away", detail: "The gateway does not answer." };
  }
  const { status, model, endpoints = [] } = report;
  if (status === "draining") return { state: "unready", detail: "The gateway is shutting down." };
  if (status !== "ready") return { state: "unready", detail: whatFails(endpoints) };
  const ready = endpoints.filter((endpoint) => endpoint.ready);
  const fastest = Math.min(...ready.map((endpoint) => endpoint.took_seconds));
  const took = Number.isFinite(fastest) ? ` in ${duration(fastest)}` : "";
  const share = endpoints.length > 1 ? `; ${ready.length} of ${endpoints.length} servers are ready` : "";
  return { state: "ready", detail: `${model} answered a trial image${took}${share}.` };
}

function whatFails(endpoints) {
  for (const { error } of endpoints) if (error) return error.message;
  return "The model has not answered a trial image yet.";
}

async function readModels() {
  let listed;
  try {
    const response = await fetch("models", { headers: withKey() });
    askForKey(response);
    if (!response.ok) {
      const { code, detail } = await response.json().catch(() => ({}));
      if (code === UNAUTHORIZED) offerDefault(keyRefused(), "");
      else offerDefault(`The models cannot be listed: ${detail ?? `the gateway answered ${response.status}.`}`);
      return;
    }
    listed = await response.json();
  } catch {
    offerDefault("The models cannot be listed: the gateway does not answer.");
    return;
  }
  modelsKnown = true;
  tellProblem("");
  feedback = listed.feedback;
  for (const model of listed.models) described.set(model.name, model);
  const options = optionsOf(listed);
  if (!options.length) {
    offerDefault("This gateway serves no model that takes images.");
    return;
  }
  const chosen = options.find((node) => node.dataset.name === wanted.get("model") && (node.dataset.version ?? "") === (wanted.get("version") ?? ""));
  if (chosen) for (const node of options) node.selected = node === chosen;
  else if (wanted.has("model")) tellProblem(`This gateway has no model ${inWords(wanted)}. Choose another one.`);
  $("model").replaceChildren(...options);
  $("model").disabled = false;
  offerComparison(optionsOf(listed).filter((node) => !node.disabled));
  $("model").dispatchEvent(new Event("listed"));
}

/** Every model, and each version of those that have several. */
function optionsOf(listed) {
  return listed.models.flatMap((model) => {
    const versions = model.versions.length > 1 ? ["", ...model.versions.toReversed()] : [""];
    return versions.map((version) => option(model, version, listed.default));
  });
}

/** Two models or versions can be compared side by side. */
function offerComparison(options) {
  $("compare-field").hidden = options.length < 2;
  const none = new Option("No other model", "");
  for (const node of options) node.selected = node.value === wanted.get("compare");
  none.selected = !options.some((node) => node.selected);
  $("compare").replaceChildren(none, ...options);
}

/** Without a list: the model of the URL, or the default model. */
export function offerDefault(problem, then = "is used for now; the page keeps trying to list them.") {
  const name = wanted.get("model");
  const node = new Option(name ? inWords(wanted) : "The default model");
  if (name) node.dataset.model = name;
  if (name && wanted.has("version")) node.dataset.version = wanted.get("version");
  $("model").replaceChildren(node);
  $("model").disabled = true;
  tellProblem(problem && then ? `${problem} ${node.text} ${then}` : problem);
  $("model").dispatchEvent(new Event("listed"));
}

function inWords(query) {
  return query.has("version") ? `${query.get("model")}, version ${query.get("version")}` : query.get("model");
}

function tellProblem(text) {
  if ($("model-problem").textContent !== text) $("model-problem").textContent = text;
  $("model-problem").hidden = !text;
}

function option(model, version, preset) {
  const node = new Option(version ? `${model.name}, version ${version}` : model.name, `${model.name}${version && ` ${version}`}`);
  node.selected = model.name === preset && !version;
  const loads = model.loaded === false;
  node.disabled = !model.ready && !loads;
  if (loads) node.text += " (loads when used)";
  else if (!model.ready) node.text += " (not ready)";
  node.title = model.reason ?? "";
  node.dataset.name = model.name;
  if (model.multi_label) node.dataset.multiLabel = "true";
  // The default is omitted, so that the request stays as short as a user would write it.
  if (version || model.name !== preset) node.dataset.model = model.name;
  if (version) node.dataset.version = version;
  return node;
}
