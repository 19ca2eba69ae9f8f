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
  const models = entries.flatMap(({ answers }) => answers.flatMap(({ model }) => (model?.version ? [model] : [])));
  const byName = Map.groupBy(models, ({ name }) => name);
  return ({ model }) => {
    if (!model?.version) return "";
    const several = byName.get(model.name).some(({ version }) => version !== model.version);
    return several ? `${model.name} version ${model.version}` : byName.size > 1 ? model.name : "";
  };
}

/** Names of entries: with the folder where several have the same name. */
export function entryNames(entries) {
  const byName = Map.groupBy(entries, ({ name }) => name);
  return ({ name, folder }) => (folder && byName.get(name)?.length > 1 ? `${folder}/${name}` : name);
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
  const byLabel = Map.groupBy(ofKind, (entry) => labelOf(entry, least));
  byLabel.delete(null);
  const sorted = [...byLabel].sort(([a, one], [b, other]) => other.length - one.length || (a < b ? -1 : 1));
  const labels = sorted.map(([name, files]) => [name, files.length]);
  return { counts, labels, files: label ? (byLabel.get(label) ?? []) : ofKind };
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
