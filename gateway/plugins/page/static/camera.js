// The camera tab: sends frames of a camera to WS /stream, and shows the predictions over the picture.

import { Capture, cameras } from "./capture.js";
import { scores } from "./cards.js";
import { cameraQuery, least } from "./choice.js";
import { $, element } from "./dom.js";
import { onKey, UNAUTHORIZED } from "./key.js";
import { factsOf } from "./service.js";
import { seen } from "./filters.js";
import { Stream } from "./stream.js";
import { count, milliseconds, percent } from "./words.js";

const ATTEMPTS = 5;
const FIGURES_MS = 500;
const WINDOW_MS = 3_000;
const ANNOUNCE_MS = 4_000;

const capture = new Capture($("camera-picture"), stop);
let stream = null;
let fault = null;
let attempt = 0;
/** Timers: for the next frame, and for the next attempt to connect. */
let frameTimer = 0;
let attemptTimer = 0;
let encoding = false;
let last = null;
let dropped = 0;
let skipped = 0;
/** The results of the last seconds: arrival time, and age of the frame. */
let recent = [];
let announced = { label: "", at: 0 };

async function start() {
  $("camera-start").disabled = true;
  showStatus("Waiting for permission to use the camera.");
  try {
    if (!(await capture.start($("camera-device").value))) return;
  } catch (error) {
    stop(error);
    return;
  } finally {
    $("camera-start").disabled = false;
  }
  [last, dropped, skipped, recent, attempt] = [null, 0, 0, [], 0];
  $("camera-off").hidden = true;
  $("camera-on").hidden = false;
  $("camera-stop").focus();
  drawAnswer();
  connect();
  clearTimeout(frameTimer);
  takeFrame();
  await offerCameras();
}

/** Stop the stream and the camera; `reason`, if any, is a fault or a sentence. */
export function stop(reason = "") {
  const wasOn = !$("camera-on").hidden;
  clearTimeout(frameTimer);
  clearTimeout(attemptTimer);
  stream?.close();
  stream = null;
  capture.stop();
  fault = reason instanceof Error ? reason : null;
  $("camera-on").hidden = true;
  $("camera-off").hidden = false;
  showStatus(fault?.message ?? reason, fault !== null);
  if (wasOn && $("main").dataset.tab === "camera") $("camera-start").focus();
}

function connect() {
  clearTimeout(attemptTimer);
  stream?.close();
  if (!attempt) showNote("Connecting");
  stream = new Stream(cameraQuery(), { onMessage, onEnd });
}

function onEnd(reason) {
  if (!capture.running) return;
  last = null;
  drawAnswer();
  if (reason.passing && attempt < ATTEMPTS) {
    attempt += 1;
    showNote(`${reason.message} Trying again (${attempt} of ${ATTEMPTS}).`);
    // Random, so that streams closed at the same time do not all reconnect at the same time.
    attemptTimer = setTimeout(connect, 2 ** (attempt - 1) * 500 * (1 + Math.random()));
    return;
  }
  stop(reason);
}

function onMessage(message, age) {
  attempt = 0;
  if (message.type === "error") showNote(message.error.message);
  if (message.type !== "frame") return;
  const now = performance.now();
  dropped += message.dropped;
  recent.push({ now, age, inside: message.latency_ms });
  const trouble = message.error ?? message.sequence?.error;
  showNote(trouble ? trouble.message : message.sequence?.restarted ? "The sequence began again: its state was lost." : "");
  if (message.status !== "ok") return;
  last = message;
  drawAnswer();
}

/** Send the current picture if the stream has capacity, and schedule the next one. */
function takeFrame() {
  const rate = Math.min(Number($("camera-rate").value), capture.rate);
  frameTimer = setTimeout(takeFrame, 1000 / rate);
  if (!stream?.open) return;
  if (encoding || !stream.hasCapacity(Math.max(2, rate))) {
    skipped += 1;
    return;
  }
  encoding = true;
  const [to, taken] = [stream, performance.now()];
  capture
    .frame(Number($("camera-size").value))
    .then((blob) => {
      if (blob && to === stream) to.send(blob, taken);
    })
    .finally(() => (encoding = false));
}

function drawAnswer() {
  const steadied = last?.sequence?.predictions ?? [];
  const own = last?.predictions ?? [];
  const shown = last?.sequence ? steadied : own;
  const [best] = shown.filter(({ score }) => score >= least());
  $("camera-label").textContent = best ? best.label : last ? "No label is likely enough" : "";
  $("camera-score").textContent = best ? percent(best.score) : "";
  const [ownBest] = own;
  $("camera-held").hidden = !(best && last?.sequence && ownBest && ownBest.class_id !== best.class_id);
  $("camera-own").textContent = last?.sequence && ownBest ? `This frame: ${ownBest.label}, ${percent(ownBest.score)}` : "";
  $("camera-words").hidden = !last;
  const lists = [];
  if (last?.sequence) lists.push(answer("Over the sequence", steadied));
  if (last) lists.push(answer("In this frame", own));
  $("camera-answers").replaceChildren(...lists);
  drawSeen();
  announce(best?.label);
}

function answer(title, predictions) {
  const section = element("section", "answer");
  const likely = predictions.filter(({ score }) => score >= least());
  const none = least() ? `No label reaches ${percent(least())}` : "No label is likely enough";
  section.append(element("h2", "", title), likely.length ? scores(likely) : element("p", "unsure", none));
  return section;
}

/** Draw a frame around the part that the model sees, unless it sees the whole picture. */
function drawSeen() {
  const video = $("camera-picture");
  const { name } = $("model").selectedOptions[0].dataset;
  const part = last && seen({ width: video.videoWidth, height: video.videoHeight }, factsOf(name));
  $("camera-seen").hidden = !part || (part.width === 1 && part.height === 1);
  for (const [side, share] of Object.entries(part ?? {})) $("camera-seen").style[side] = `${share * 100}%`;
}

function drawFigures() {
  const now = performance.now();
  recent = recent.filter((each) => now - each.now < WINDOW_MS);
  const since = recent.length > 1 ? (recent.at(-1).now - recent[0].now) / 1000 : 0;
  const times = ["age", "inside"].map((name) => milliseconds(Math.round(median(recent.map((each) => each[name])))));
  const figures = `${((recent.length - 1) / since).toFixed(1)} frames per second, latency ${times[0]}, ${times[1]} of it in the gateway`;
  const lost = `${count(dropped)} dropped by the gateway, ${count(skipped)} by this browser`;
  $("camera-figures").textContent = [...(since ? [figures] : []), ...(dropped + skipped ? [lost] : [])].join("; ");
}

const median = (numbers) => numbers.toSorted((one, other) => one - other)[numbers.length >> 1];

/** Announce the label to screen readers when it changes, but not for every frame. */
function announce(label) {
  const now = performance.now();
  if (!label || label === announced.label || now - announced.at < ANNOUNCE_MS) return;
  announced = { label, at: now };
  $("camera-said").textContent = label;
}

function showStatus(text, wrong = false) {
  $("camera-reason").textContent = text;
  $("camera-reason").classList.toggle("problem", wrong);
}

function showNote(text) {
  if ($("camera-state").textContent !== text) $("camera-state").textContent = text;
}

async function offerCameras() {
  const all = await cameras();
  $("camera-device-field").hidden = all.length < 2;
  $("camera-device").replaceChildren(
    ...all.map(({ label, deviceId }, position) => new Option(label || `Camera ${position + 1}`, deviceId, false, deviceId === capture.device)),
  );
}

/** Open a new stream for the running camera: its parameters are those of its URL. */
function again() {
  if (!capture.running) return;
  attempt = 0;
  connect();
}

$("camera-start").addEventListener("click", start);
// A click before this module was loaded would be lost.
$("camera-start").disabled = false;
$("camera-stop").addEventListener("click", () => stop());
$("camera-device").addEventListener("change", () => {
  if (capture.running) capture.start($("camera-device").value).catch(stop);
});
navigator.mediaDevices?.addEventListener("devicechange", () => {
  if (capture.running) offerCameras();
});
for (const id of ["model", "smoothing", "top-k"]) $(id).addEventListener("change", again);
onKey(() => {
  if (fault?.code === UNAUTHORIZED) start();
});
// The page is hidden: stop the camera, since users do not expect it to run unseen.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && (capture.running || $("camera-start").disabled)) stop("Stopped, because this page was hidden.");
});
addEventListener("pagehide", () => stop());
setInterval(() => {
  if (!$("camera-on").hidden) drawFigures();
}, FIGURES_MS);
