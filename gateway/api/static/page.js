// The gateway's page: files in, cards out, and what can be chosen between. No dependencies; works offline.

import { Cards, element } from "./cards.js";
import { droppedFiles } from "./drop.js";
import { Entry } from "./entry.js";
import { keyWanted, onKey } from "./key.js";
import { Run } from "./run.js";
import { watchHealth } from "./service.js";
import { Viewer } from "./viewer.js";
import { count, curl, duration, images, milliseconds, rate } from "./words.js";

const CARDS = 48;
const ANNOUNCE_MS = 5_000;

const $ = (id) => document.getElementById(id);

let entries = [];
let run = null;
let filter = "all";
let limit = CARDS;
let frame = 0;
let announcedAt = 0;

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
  $("again").hidden = $("save").hidden = running || !entries.length;
  $("again").classList.toggle("primary", run !== null && run.query !== chosenQuery());

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
  $("curl").value = curl(new URL(`predict?${chosenQuery()}`, document.baseURI).href, names, key);
  $("curl-label").textContent = entries.length > 3 ? "The first three with curl" : "The same with curl";
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
    await navigator.clipboard.writeText($("curl").value);
  } catch {
    // Outside of HTTPS and localhost the clipboard is out of reach, and only a selection can be copied.
    $("curl").select();
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1_500);
}

function save() {
  const results = entries.map((entry, index) => ({ index, ...entry.toJSON() }));
  const ok = results.filter((result) => result.status === "ok").length;
  const answer = { model: run?.model ?? null, results, summary: { ok, failed: results.length - ok } };
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }));
  link.download = "results.json";
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
addEventListener("dragover", (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  $("veil").hidden = false;
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) $("veil").hidden = true;
});
addEventListener("drop", async (event) => {
  if (!carriesFiles(event)) return;
  event.preventDefault();
  $("veil").hidden = true;
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
$("clear").addEventListener("click", clear);
$("model").addEventListener("change", () => {
  // A model with several labels for an image says itself which are likely.
  const likely = $("likely");
  likely.hidden = !$("model").selectedOptions[0].dataset.multiLabel;
  if (likely.selected === likely.hidden) $("top-k").value = likely.hidden ? "5" : "";
  draw();
});
$("top-k").addEventListener("change", draw);
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

drawNow();
watchHealth();
