// The gateway's page: files in, cards out, and what can be chosen between. No dependencies; works offline.

import { Cards, element } from "./cards.js";
import { droppedFiles } from "./drop.js";
import { Entry } from "./entry.js";
import { keyWanted, onKey } from "./key.js";
import { Run } from "./run.js";
import { watchHealth } from "./service.js";
import { Viewer } from "./viewer.js";
import { count, csv, curl, duration, images, javascript, milliseconds, python, rate } from "./words.js";

const CARDS = 48;
const ANNOUNCE_MS = 5_000;
const CLOCK_MS = 200;

const $ = (id) => document.getElementById(id);

let entries = [];
let run = null;
let filter = "all";
let limit = CARDS;
let frame = 0;
let announcedAt = 0;
let language = "curl";

const shownEntries = () => (filter === "all" ? entries : entries.filter((entry) => entry.state === filter));
const viewer = new Viewer(shownEntries);
const cards = new Cards($("cards"), $("card"), (entry) => viewer.open(entry));

// What is asked

function chosenQuery() {
  const query = new URLSearchParams();
  if ($("top-k").value) query.set("top_k", $("top-k").value);
  const { model, version } = $("model").selectedOptions[0].dataset;
  if (model) query.set("model", model);
  if (version) query.set("version", version);
  return query.toString();
}

function add(files) {
  const more = files.map((file) => new Entry(file));
  entries.push(...more);
  send(more);
}

function send(more) {
  if (!more.length) return;
  if (!run?.running) {
    announcedAt = performance.now();
    const started = new Run(chosenQuery(), {
      changed: draw,
      finished: () => {
        if (run === started) announce(spoken(run));
      },
    });
    run = started;
  }
  run.add(more);
}

// What is shown

function draw() {
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  const ok = entries.filter((entry) => entry.state === "ok").length;
  const failed = entries.filter((entry) => entry.state === "error").length;
  const running = run?.running ?? false;
  $("drop").classList.toggle("compact", entries.length > 0);
  $("results").hidden = !entries.length;
  $("results").classList.toggle("running", running);
  drawProgress(running, ok, failed);
  for (const button of $("filters").children) {
    button.dataset.count = count({ all: entries.length, ok, error: failed }[button.dataset.filter]);
    button.setAttribute("aria-pressed", String(button.dataset.filter === filter));
  }
  $("filters").hidden = entries.length < 2;
  $("stop").hidden = !running;
  $("retry").hidden = running || !entries.some((entry) => entry.retryable);
  $("again").hidden = $("save").hidden = $("save-csv").hidden = running || !entries.length;
  const changed = run !== null && run.query !== chosenQuery();
  $("again").classList.toggle("primary", changed);
  $("again").textContent = changed ? "Run again with this choice" : "Run again";

  const shown = shownEntries();
  cards.show(shown.slice(0, limit));
  const hidden = shown.length - limit;
  $("more").hidden = hidden <= 0;
  $("more").textContent = `Show ${count(Math.min(CARDS, hidden))} more of ${count(hidden)}`;
  $("none").hidden = shown.length > 0;
  drawAsked();
}

function drawProgress(running, ok, failed) {
  const done = run?.answered ?? 0;
  const total = run?.entries.size ?? 1;
  $("progress").max = total;
  $("progress").value = done;
  $("tally").textContent = running
    ? `${count(done)} of ${count(total)}`
    : `${count(ok)} classified${failed ? `, ${count(failed)} failed` : ""}`;
  $("waiting").textContent = run?.waiting ?? "";
  $("pace").hidden = !run;
  if (!run) return;
  const took = running ? duration(run.seconds) : `${images(done)} in ${duration(run.seconds)}`;
  $("pace").textContent = done > 1 && run.seconds > 0.5 ? `${took}, ${rate(done / run.seconds)}` : took;
  $("timing").replaceChildren(...stages(run));
  if (running && performance.now() - announcedAt > ANNOUNCE_MS) {
    announcedAt = performance.now();
    announce(`${count(done)} of ${images(total)} answered`);
  }
}

/** The stages of a Server-Timing header (W3C Server Timing). */
function stages({ timing, streamed }) {
  const rows = (timing ?? "").split(",").flatMap((stage) => {
    const [name, value] = stage.split(";dur=");
    if (value === undefined) return [];
    const row = element("span", "stage", name.trim());
    row.append(element("span", "", milliseconds(Number(value))));
    return [row];
  });
  if (!rows.length) return [element("span", "", "Times in the service come with the first answer")];
  return [element("span", "", `Times in the service, last request${streamed ? ", up to its first result" : ""}`), ...rows];
}

function drawAsked() {
  $("model-facts").textContent = $("model").selectedOptions[0].dataset.facts ?? "";
  const names = entries.length ? entries.slice(0, 3).map((entry) => entry.name) : ["cat.jpg"];
  const key = keyWanted() ? "KEY" : "";
  const url = new URL(`predict?${chosenQuery()}`, document.baseURI).href;
  const code = {
    curl: () => curl(url, names, key),
    python: () => python(new URL(".", document.baseURI).href.replace(/\/$/, ""), new URLSearchParams(chosenQuery()), names, key),
    javascript: () => javascript(url, key),
  }[language]();
  if ($("code").value !== code) $("code").value = code;
  $("code").rows = code.split("\n").length;
  $("code-label").textContent = entries.length > 3 && language !== "javascript" ? "The first three in code" : "The same in code";
  for (const button of $("languages").children) button.setAttribute("aria-pressed", String(button.dataset.language === language));
}

/** The page's address asks for what is chosen, so that it can be shared. */
function share() {
  const query = chosenQuery();
  history.replaceState(null, "", query === "top_k=5" ? location.pathname : `?${query}`);
}

function announce(text) {
  $("live").textContent = text;
}

function spoken({ entries: those, seconds }) {
  if (those.size <= 5) return [...those].map((entry) => `${entry.name}: ${entry.inWords.replace(/\.$/, "")}.`).join(" ");
  const ok = [...those].filter((entry) => entry.state === "ok").length;
  return `Done in ${duration(seconds)}: ${count(ok)} classified, ${count(those.size - ok)} failed.`;
}

// What can be done

async function copyCurl() {
  try {
    await navigator.clipboard.writeText($("code").value);
  } catch {
    // Outside of HTTPS and localhost the clipboard is out of reach, and only a selection can be copied.
    $("code").select();
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1_500);
}

function save() {
  const results = entries.map((entry, index) => ({ index, ...entry.toJSON() }));
  const ok = results.filter((result) => result.status === "ok").length;
  const answer = { model: run?.model ?? null, results, summary: { ok, failed: results.length - ok } };
  download("results.json", JSON.stringify(answer, null, 2), "application/json");
}

/** A row for each label of each file, and one for each file without an answer. */
function saveCsv() {
  const rows = entries.flatMap((entry) => {
    const { filename, model, predictions, error } = entry.toJSON();
    const about = [filename, model?.name, model?.version];
    if (!predictions.length) return [[...about, "", "", "", error?.code ?? ""]];
    return predictions.map(({ label, score }, rank) => [...about, rank + 1, label, score, ""]);
  });
  download("results.csv", csv([["filename", "model", "version", "rank", "label", "score", "error"], ...rows]), "text/csv");
}

function download(name, text, type) {
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function clear() {
  const before = run;
  [entries, run, filter, limit] = [[], null, "all", CARDS];
  before?.stop();
  announce("Cleared");
  draw();
  $("files").focus();
}

$("files").addEventListener("change", () => {
  add([...$("files").files]);
  $("files").value = "";
});
$("drop").addEventListener("click", (event) => {
  if (!event.target.closest("button, label, input")) $("files").click();
});
$("sample").addEventListener("click", async () => {
  const response = await fetch("assets/cat.jpg");
  if (response.ok) add([new File([await response.blob()], "cat.jpg", { type: "image/jpeg" })]);
});

const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
// What a browser does with a link that is dropped is to go there, and the results would be gone.
const toATextField = (event) => !carriesFiles(event) && event.target.closest?.("input, textarea");
addEventListener("dragover", (event) => {
  if (toATextField(event)) return;
  event.preventDefault();
  if (carriesFiles(event)) $("veil").hidden = false;
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) $("veil").hidden = true;
});
addEventListener("drop", async (event) => {
  if (toATextField(event)) return;
  event.preventDefault();
  $("veil").hidden = true;
  if (!carriesFiles(event)) {
    announce("Only files can be dropped here. Save the picture first, or copy and paste it.");
    return;
  }
  add(await droppedFiles(event.dataTransfer));
});
addEventListener("paste", (event) => {
  if (!event.clipboardData?.files.length) return;
  event.preventDefault();
  add([...event.clipboardData.files]);
});

$("filters").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  [filter, limit] = [button.dataset.filter, CARDS];
  draw();
});
$("more").addEventListener("click", () => {
  limit += CARDS;
  draw();
});
$("stop").addEventListener("click", () => run?.stop());
$("retry").addEventListener("click", () => send(entries.filter((entry) => entry.retryable)));
$("again").addEventListener("click", () => send(entries));
$("save").addEventListener("click", save);
$("save-csv").addEventListener("click", saveCsv);
$("languages").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  language = button.dataset.language;
  drawAsked();
});
$("clear").addEventListener("click", clear);
$("model").addEventListener("change", () => {
  // A model with several labels for an image says itself which are likely.
  const likely = $("likely");
  likely.hidden = !$("model").selectedOptions[0].dataset.multiLabel;
  if (likely.selected === likely.hidden) $("top-k").value = likely.hidden ? "5" : "";
  draw();
});
for (const id of ["model", "top-k"]) {
  $(id).addEventListener("change", (event) => {
    if (event.isTrusted) share(); // not where the list of models has come
    draw();
  });
}
$("copy").addEventListener("click", copyCurl);
$("key-field").addEventListener("shown", draw);
onKey(() => {
  watchHealth();
  send(entries.filter((entry) => entry.error?.code === "unauthorized"));
});

addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.activeElement.closest(".tip-anchor button")?.blur();
});
$("health").addEventListener("click", watchHealth);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) watchHealth();
});

const asked = new URLSearchParams(location.search).get("top_k");
if ([...$("top-k").options].some((option) => option.value === asked)) $("top-k").value = asked;
// On a slow line nothing else moves for seconds.
setInterval(() => {
  if (run?.running) draw();
}, CLOCK_MS);
drawNow();
watchHealth();
