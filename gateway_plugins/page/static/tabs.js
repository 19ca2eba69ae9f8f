// Images or a camera: two tabs over one choice of models (WAI-ARIA Authoring Practices, "Tabs").

const $ = (id) => document.getElementById(id);

const NAMES = ["images", "camera"];
const tabs = NAMES.map((name) => $(`tab-${name}`));

export const tabShown = () => $("main").dataset.tab;

/** Listen to the tabs, and show the one in the page's URL; `shown` is called with the name of each tab that is opened. */
export function watchTabs(shown) {
  watchTabs.shown = shown;
  for (const [position, tab] of tabs.entries()) {
    tab.addEventListener("click", () => showTab(NAMES[position]));
    tab.addEventListener("keydown", ({ key }) => {
      const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: -1 }[key];
      if (to === undefined) return;
      showTab(NAMES.at(to % NAMES.length));
      $(`tab-${tabShown()}`).focus();
    });
  }
  const tab = new URLSearchParams(location.search).get("tab");
  if (NAMES.includes(tab)) showTab(tab);
}

export function showTab(name) {
  if (name === tabShown()) return;
  $("main").dataset.tab = name;
  for (const [position, tab] of tabs.entries()) {
    const selected = NAMES[position] === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    $(NAMES[position]).hidden = !selected;
  }
  watchTabs.shown(name);
}
