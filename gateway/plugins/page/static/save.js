// Results as files.

import { csv } from "./words.js";

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
