// Results as files.

import { entryNames, modelWords } from "./filters.js";
import { count, csv, percent } from "./words.js";

const THUMBNAIL_WIDTH = 320;
const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>TITLE</title>
<style>
STYLE
</style>
<header>
<h1>TITLE</h1>
<p>FACTS</p>
</header>
<main>
CARDS
</main>
</html>
`;

/** The service's JSON response for all files in one request. */
export function saveJson(entries) {
  const results = answersOf(entries).map((answer, index) => ({ index, ...answer.toJSON() }));
  const ok = results.filter((result) => result.status === "ok").length;
  const models = results.map((result) => result.model).filter((model) => model?.version);
  const same = models.every(({ name, version }) => name === models[0].name && version === models[0].version);
  const model = same ? (models[0] ?? null) : null;
  const answer = { model, results, summary: { ok, failed: results.length - ok } };
  download(named(entries, "json"), JSON.stringify(answer, null, 2), "application/json");
}

/** A row for each label of each file, and one for each file without an answer. */
export function saveCsv(entries) {
  const rows = answersOf(entries).flatMap((answer) => {
    const { filename, model, predictions, error } = answer.toJSON();
    const about = [filename, model?.name, model?.version];
    if (!predictions.length) return [[...about, "", "", "", error?.code ?? ""]];
    return predictions.map(({ label, score }, rank) => [...about, rank + 1, label, score, ""]);
  });
  download(named(entries, "csv"), csv([["filename", "model", "version", "rank", "label", "score", "error"], ...rows]), "text/csv");
}

/** A page in this page's style with the pictures, small, and their labels; it needs no service and no other file. */
export async function savePage(entries) {
  const styles = ["assets/tokens.css", "assets/saved.css"].map(async (path) => (await fetch(path)).text());
  const style = (await Promise.all(styles)).join("\n");
  const names = entryNames(entries);
  const words = modelWords(entries);
  const cards = [];
  for (const entry of entries) cards.push(await figure(entry, names(entry), words));
  const models = new Set(answersOf(entries).map(({ modelInWords }) => modelInWords).filter(Boolean));
  const title = `${count(entries.length)} ${entries.length === 1 ? "image" : "images"}, classified`;
  const now = new Date();
  const date = `<time datetime="${now.toISOString()}">${now.toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" })}</time>`;
  const facts = [...[...models].map(escaped), date, escaped(new URL(".", document.baseURI).href)];
  const parts = { TITLE: escaped(title), STYLE: style, FACTS: facts.map((fact) => `<span>${fact}</span>`).join(" "), CARDS: cards.join("\n") };
  download(named(entries, "html"), PAGE.replace(/TITLE|STYLE|FACTS|CARDS/g, (name) => parts[name]), "text/html");
}

async function figure(entry, name, words) {
  const picture = await thumbnail(entry.file);
  const answers = entry.answers.map((answer) => {
    const model = words(answer) ? `<p class="model">${escaped(words(answer))}</p>` : "";
    const rows = (answer.result?.predictions ?? []).map(row);
    return model + (rows.length ? `<ol>${rows.join("")}</ol>` : `<p${answer.error ? ' class="error"' : ""}>${escaped(answer.inWords)}</p>`);
  });
  const shown = picture ? `<img src="${picture}" alt="">` : "";
  return `<figure>${shown}<figcaption>${answers.join("")}<small>${escaped(name)}</small></figcaption></figure>`;
}

function row({ label, score }) {
  const width = Math.min(100, Math.max(0, score * 100)).toFixed(1);
  return `<li><span>${escaped(label)}</span> <b>${percent(score)}</b><i><u style="width:${width}%"></u></i></li>`;
}

/** A small JPEG of a file as a data URL; "" where the browser cannot show it. */
async function thumbnail(file) {
  try {
    const bitmap = await createImageBitmap(file, { resizeWidth: THUMBNAIL_WIDTH, resizeQuality: "high" });
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    return canvas.toDataURL("image/jpeg", 0.8);
  } catch {
    return "";
  }
}

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

const answersOf = (entries) => entries.flatMap((entry) => entry.answers);

/** `results-flowers-2.json`: the file name contains the models, if there are few. */
function named(entries, ending) {
  const models = new Set(answersOf(entries).flatMap(({ model }) => (model?.version ? [`${model.name}-${model.version}`] : [])));
  const those = models.size > 2 ? [] : [...models].map((model) => model.replace(/[^\w.-]+/g, "_"));
  return `${["results", ...those].join("-")}.${ending}`;
}

function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
