// The gateway's page: files in, cards out, and the parameters. No dependencies; works offline.

import { drawAbout } from "./about.js";
import { drawAsked, onChoice, queries, share, showTab, takeAddress, watchTabs } from "./choice.js";
import { $ } from "./dom.js";
import { droppedFiles, Entry } from "./entry.js";
import { entryNames } from "./filters.js";
import { classifyExample, drawExample, showExample } from "./example.js";
import { keyMissing, onKey, UNAUTHORIZED } from "./key.js";
import { announce, Results } from "./results.js";
import { LOST, Run } from "./run.js";
import { saveCsv, saveJson } from "./save.js";
import { offerDefault, watchHealth } from "./service.js";
import { Viewer } from "./viewer.js";
import { count, duration } from "./words.js";

const CLOCK_MS = 200;

let entries = [];
let run = null;
let frame = 0;

const viewer = new Viewer(
  () => results.shown,
  () => entryNames(entries),
);
const results = new Results({ open: (entry) => viewer.open(entry), changed: draw });

/** Add files, each alone or as `[file, folder]`. */
function add(files) {
  showTab("images");
  const more = files.map((file) => new Entry(...[file].flat()));
  entries.push(...more);
  ask(more);
}

/** Request results for the current choice. */
function ask(those) {
  send(those.flatMap((entry) => entry.ask(queries())));
}

function send(answers) {
  if (!answers.length) return;
  if (!run?.running) {
    const started = new Run({
      changed: draw,
      finished: () => {
        if (run === started) announce(spoken(run));
      },
    });
    run = started;
  }
  run.add(answers);
}

function draw() {
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  $("start").classList.toggle("compact", entries.length > 0);
  showExample(!entries.length);
  drawExample();
  results.draw(entries, run);
  drawAbout();
  drawAsked(entries.map((entry) => entry.name));
}

function spoken({ answers, seconds }) {
  const those = new Set([...answers].map((answer) => answer.entry));
  if (those.size <= 5) return [...those].map((entry) => `${entry.name}: ${entry.inWords.replace(/\.$/, "")}.`).join(" ");
  const ok = [...those].filter((entry) => entry.state === "ok").length;
  return `Done in ${duration(seconds)}: ${count(ok)} classified, ${count(those.size - ok)} failed.`;
}

function clear() {
  const before = run;
  [entries, run] = [[], null];
  before?.stop();
  results.reset();
  announce("Cleared");
  drawNow();
  exemplify();
  $("files").focus();
}

/** Classify the example, once the service is ready. */
function exemplify(options) {
  if ($("health").dataset.state === "ready" && !keyMissing()) classifyExample(options);
}

const answersWhere = (holds) => entries.flatMap((entry) => entry.answers).filter(holds);

for (const input of [$("files"), $("photo")]) {
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = "";
  });
}
$("drop").addEventListener("click", (event) => {
  if (!event.target.closest("button, label, input")) $("files").click();
});
const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
// By default browsers open a dropped link, and the results would be lost.
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
    showNotice("Only files can be dropped here. Save the picture first, or copy and paste it.");
    return;
  }
  try {
    add(await droppedFiles(event.dataTransfer));
  } catch {
    showNotice("What you dropped could not be read; it may have been moved, or you may not open it.");
  }
});
addEventListener("paste", (event) => {
  if (!event.clipboardData?.files.length) return;
  event.preventDefault();
  add([...event.clipboardData.files]);
});

/** Show a message about a failed action for some seconds. */
function showNotice(text) {
  $("said").textContent = text;
  clearTimeout(showNotice.timer);
  showNotice.timer = setTimeout(() => ($("said").textContent = ""), 8_000);
}

$("stop").addEventListener("click", () => run?.stop());
$("retry").addEventListener("click", () => send(answersWhere((answer) => answer.retryable)));
$("again").addEventListener("click", () => ask(entries));
$("save").addEventListener("click", () => saveJson(entries));
$("save-csv").addEventListener("click", () => saveCsv(entries));
$("saves").addEventListener("click", ({ target }) => {
  if (target.closest("button")) $("saves").open = false;
});
for (const button of document.querySelectorAll(".panels button")) {
  const panel = $(button.getAttribute("aria-controls"));
  button.addEventListener("click", () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    draw();
  });
}
$("clear").addEventListener("click", clear);
$("key-field").addEventListener("shown", draw);
onChoice(() => {
  draw();
  exemplify();
});
onKey(() => {
  watchHealth();
  exemplify({ again: true });
  send(answersWhere((answer) => answer.error?.code === UNAUTHORIZED));
});

$("health").addEventListener("click", watchHealth);
// The gateway was restarted; failures for another reason may happen again.
$("health").addEventListener("ready", () => {
  send(answersWhere((answer) => answer.error?.code === LOST));
  exemplify({ again: true });
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) watchHealth();
});

/** The modules of the camera are loaded when its tab is first opened. */
let camera = null;
async function showCamera(name) {
  share();
  draw();
  try {
    if (name === "camera") await (camera ??= import("./camera.js"));
    else (await camera)?.stop();
  } catch {
    camera = null;
    showNotice("The gateway does not answer, so this tab could not be loaded. Choose it again in a while.");
    showTab("images");
  }
}

takeAddress();
offerDefault(""); // files that are added before the models are listed are sent to the model of the URL
watchTabs(showCamera);
// On a slow connection nothing else on the page changes for seconds.
setInterval(() => {
  if (run?.running) draw();
}, CLOCK_MS);
drawNow();
watchHealth();
exemplify();
