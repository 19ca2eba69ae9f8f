// Results as files.

import { count, csv, percent } from "./words.js";

const THUMBNAIL_WIDTH = 320;
const PAGE = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>TITLE</title>
<style>
  body { max-width: 1180px; margin: 32px auto; padding: 0 20px; font: 15px/1.5 system-ui, sans-serif; }
  main { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 18px; }
  figure { margin: 0; border: 1px solid color-mix(in srgb, currentcolor 25%, transparent); border-radius: 12px; overflow: hidden; }
  img { display: block; width: 100%; aspect-ratio: 16 / 10; object-fit: contain; background: color-mix(in srgb, currentcolor 12%, transparent); }
  figcaption { padding: 12px 14px; overflow-wrap: anywhere; }
  ol { margin: 0 0 8px; padding: 0; list-style: none; }
  li { display: flex; justify-content: space-between; gap: 12px; }
  li:first-child { font-size: 18px; font-weight: 650; }
  p { margin: 0 0 4px; }
</style>
<h1>TITLE</h1>
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

/** A page with the pictures, small, and their labels; it needs no service and no other file. */
export async function savePage(entries) {
  const cards = [];
  for (const entry of entries) cards.push(await figure(entry));
  const models = new Set(answersOf(entries).map(({ modelInWords }) => modelInWords).filter(Boolean));
  const title = [`${count(entries.length)} ${entries.length === 1 ? "image" : "images"}`, ...models].join(", ");
  const document = PAGE.replace("TITLE", () => escaped(title)).replace("TITLE", () => escaped(title)).replace("CARDS", () => cards.join("\n"));
  download(named(entries, "html"), document, "text/html");
}

async function figure(entry) {
  const picture = await thumbnail(entry.file);
  const answers = entry.answers.map((answer) => {
    const rows = (answer.result?.predictions ?? []).map(({ label, score }) => `<li><span>${escaped(label)}</span> ${percent(score)}</li>`);
    const model = entry.answers.length > 1 ? `<p>${escaped(answer.modelInWords)}</p>` : "";
    return model + (rows.length ? `<ol>${rows.join("")}</ol>` : `<p>${escaped(answer.inWords)}</p>`);
  });
  const shown = picture ? `<img src="${picture}" alt="">` : "";
  return `<figure>${shown}<figcaption>${answers.join("")}<small>${escaped(entry.name)}</small></figcaption></figure>`;
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
