// Elements of the page.

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

const COPIED = "Copied";

/** Put a text into the clipboard; the button confirms it. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages over plain HTTP, except those of localhost, cannot write to the clipboard; users can copy a selection.
    const area = document.createElement("textarea");
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const words = button.textContent;
  if (words === COPIED) return;
  button.textContent = COPIED;
  setTimeout(() => (button.textContent = words), 1_500);
}

export function button(text, clicked, className = "") {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", clicked);
  return node;
}

/** A search field; `changed` is called with its text in lower case. */
export function searchField(name, placeholder, changed) {
  const node = element("input", "");
  Object.assign(node, { type: "search", placeholder });
  node.setAttribute("aria-label", name);
  node.addEventListener("input", () => changed(node.value.trim().toLowerCase()));
  return node;
}

/** Show the reason of a failure after an element, instead of the reason of an earlier one. */
export function tellFailure(node, reason) {
  node.parentElement.querySelector(":scope > .problem")?.remove();
  const problem = element("p", "problem", reason);
  problem.setAttribute("role", "alert");
  node.after(problem);
}

/** Run a button's action, with `words` on the disabled button meanwhile; the button goes if the action succeeds. */
export async function whileWorking(node, words, action) {
  const before = node.textContent;
  node.disabled = true;
  node.textContent = words;
  try {
    await action();
    node.remove();
  } catch (error) {
    node.disabled = false;
    node.textContent = before;
    if (error.name !== "AbortError") tellFailure(node, error instanceof TypeError ? "The gateway does not answer." : error.message);
  }
}
