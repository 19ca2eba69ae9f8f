// The OpenAPI document in Swagger UI, with the system's colour scheme, accessible to screen readers.

const FOLDED = "Open Inference Protocol";

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", colour);
colour();

/** Swagger UI puts a link into each operation's button, skips a level of headings, and leaves its title out of landmarks. */
const readable = ({ React }) => ({
  wrapComponents: {
    DeepLink: () => ({ text }) => React.createElement("span", null, text),
    InfoContainer: (Info) => (props) =>
      React.createElement("section", { "aria-label": "About" }, React.createElement(Info, props)),
    operations: (Operations) => (props) =>
      React.createElement(
        React.Fragment,
        null,
        React.createElement("h2", { className: "unseen" }, "Endpoints"),
        React.createElement(Operations, props),
      ),
  },
});

const ui = globalThis.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  plugins: [readable],
  onComplete() {
    // Collapsed: it is for clients of other servers, and longer than the rest.
    if (!decodeURIComponent(location.hash).includes(FOLDED.replaceAll(" ", "_"))) {
      ui.layoutActions.show(["operations-tag", FOLDED], false);
    }
  },
});

/** Add missing names for screen readers, and let the keyboard scroll elements that only the mouse can scroll. */
function mend() {
  for (const example of document.querySelectorAll("pre.microlight:not([tabindex])")) example.tabIndex = 0;
  for (const field of document.querySelectorAll("td input:not([aria-label]), td select:not([aria-label]), td textarea:not([aria-label])")) {
    const row = field.closest("tr");
    field.setAttribute("aria-label", row?.dataset.propertyName ?? row?.dataset.paramName ?? "Value");
  }
}

new MutationObserver(mend).observe(document.getElementById("docs"), { childList: true, subtree: true });
