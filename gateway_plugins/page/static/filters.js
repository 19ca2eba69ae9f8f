// Selects the files to show. Pure functions: no element is read or changed.

/** The best prediction that reaches `least`, or null. */
export const bestOf = (answer, least) => (answer.best && answer.best.score >= least ? answer.best : null);

/** The label of a file: the first model's best class, or null if its score is below `least`. */
export function labelOf(entry, least) {
  return entry.first.state === "ok" ? (bestOf(entry.first, least)?.label ?? null) : null;
}

/** Whether two models give a file different labels. */
export const differs = (entry, least) => {
  if (entry.answers.length < 2 || entry.state !== "ok") return false;
  const [one, other] = entry.answers.map((answer) => bestOf(answer, least)?.label ?? null);
  return one !== other;
};

/**
 * The words for the model of each answer, as far as answers differ: none if all have one model and version, the name if
 * there are several models, and the version of a model that answered with several.
 */
export function modelWords(entries) {
  const versions = new Map();
  for (const { answers } of entries) {
    for (const { model } of answers) {
      if (!model?.version) continue;
      if (!versions.has(model.name)) versions.set(model.name, new Set());
      versions.get(model.name).add(model.version);
    }
  }
  return ({ model }) => {
    const several = versions.get(model?.name)?.size > 1;
    if (several) return `${model.name} version ${model.version}`;
    return versions.size > 1 && model?.version ? model.name : "";
  };
}

/** Names of entries: with the folder where several have the same name. */
export function entryNames(entries) {
  const times = new Map();
  for (const { name } of entries) times.set(name, (times.get(name) ?? 0) + 1);
  return ({ name, folder }) => (folder && times.get(name) > 1 ? `${folder}/${name}` : name);
}

const KINDS = {
  all: () => true,
  ok: (entry) => entry.state === "ok",
  error: (entry) => entry.state === "error",
  unsure: (entry, least) => entry.state === "ok" && labelOf(entry, least) === null,
  differ: differs,
};

/**
 * Select entries. `kind` is a name of KINDS, `label` the required label ("" for any), `least` the lowest score of a label.
 * Returns the number of entries of each kind, the labels with their counts, most frequent first, and the `files` to show.
 */
export function filterEntries(entries, { kind = "all", label = "", least = 0 } = {}) {
  const counts = Object.fromEntries(
    Object.entries(KINDS).map(([name, holds]) => [name, entries.filter((entry) => holds(entry, least)).length]),
  );
  const ofKind = entries.filter((entry) => KINDS[kind](entry, least));
  const byLabel = groupBy(ofKind, least);
  byLabel.delete(null);
  const sorted = [...byLabel].sort(([a, one], [b, other]) => other.length - one.length || (a < b ? -1 : 1));
  const labels = sorted.map(([name, files]) => [name, files.length]);
  return { counts, labels, files: label ? (byLabel.get(label) ?? []) : ofKind };
}

function groupBy(entries, least) {
  const groups = new Map();
  for (const entry of entries) {
    const label = labelOf(entry, least);
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(entry);
  }
  return groups;
}

/**
 * The part of an upright image that a model sees, as shares of its width and height, by torchvision's parameters:
 * `resize_size` [height, width] or [shorter side]; `crop_size` [height, width] or [side], from the centre. Returns null
 * if the model's description lacks them.
 */
export function seen({ width, height }, { resize_size: resize, crop_size: crop } = {}) {
  if (!resize?.length || !crop?.length || !width || !height) return null;
  const shorter = resize[0] / Math.min(width, height);
  const [resizedHeight, resizedWidth] = resize.length > 1 ? resize : [height * shorter, width * shorter];
  const [cropHeight, cropWidth] = crop.length > 1 ? crop : [crop[0], crop[0]];
  const across = Math.min(1, cropWidth / resizedWidth);
  const down = Math.min(1, cropHeight / resizedHeight);
  return { left: (1 - across) / 2, top: (1 - down) / 2, width: across, height: down };
}
