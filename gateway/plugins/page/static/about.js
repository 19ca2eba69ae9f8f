// The model card: what the chosen model is, which version answers and since when, and every label that it knows.

import { $, element, searchField } from "./dom.js";
import { chosenModel, factsOf } from "./service.js";
import { count } from "./words.js";

const NAMED = 5;
const LISTED = 200;
const day = new Intl.DateTimeFormat("en", { dateStyle: "long" });

let drawn = null;

/** Draw the card of the chosen model; it is left as it is while the choice stays. */
export function drawAbout() {
  const model = factsOf(chosenModel());
  const { version } = $("model").selectedOptions[0].dataset;
  if (drawn?.model === model && drawn.version === version) return;
  drawn = { model, version };
  $("about-name").textContent = model.name ?? "Image classifier";
  $("about-words").textContent = model.description ?? "";
  $("about-version").textContent = model.name ? versionInWords(model, version) : "";
  const labels = model.labels ?? [];
  $("about-labels").hidden = !labels.length;
  $("about-labels").replaceChildren(...labelNodes(labels));
}

function versionInWords({ version, shares = {}, since }, chosen) {
  if (chosen) return `Version ${chosen}`;
  const all = Object.values(shares).reduce((sum, share) => sum + share, 0);
  const parts = Object.entries(shares).map(([number, share]) => `${number} (${Math.round((100 * share) / all)}%)`);
  return `Version ${parts.length > 1 ? parts.join(", ") : version}${since ? `, since ${day.format(new Date(since))}` : ""}`;
}

function labelNodes(labels) {
  const named = labels.slice(0, NAMED).join(", ");
  const words = `Knows ${count(labels.length)} ${labels.length === 1 ? "label" : "labels"}: ${named}${labels.length > NAMED ? ", …" : ""}`;
  const list = element("p", "");
  const fill = (part) => {
    const found = labels.filter((label) => label.toLowerCase().includes(part));
    const more = found.length > LISTED ? `, and ${count(found.length - LISTED)} more` : "";
    list.textContent = found.length ? `${found.slice(0, LISTED).join(", ")}${more}` : "No label has this in it.";
  };
  fill("");
  return [element("summary", "", words), searchField("Search what the model knows", `Search ${count(labels.length)} labels`, fill), list];
}
