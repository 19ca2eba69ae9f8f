// The schema of the service by Swagger UI, in the colours of the site; there is no service here to send requests to.

globalThis.SwaggerUIBundle({
  spec: OPENAPI,
  dom_id: "#openapi",
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  supportedSubmitMethods: [],
});

const system = matchMedia("(prefers-color-scheme: dark)");

function colour() {
  const theme = document.body.dataset.theme;
  document.documentElement.classList.toggle("dark-mode", theme === "dark" || (theme === "auto" && system.matches));
}

system.addEventListener("change", colour);
new MutationObserver(colour).observe(document.body, { attributeFilter: ["data-theme"] });
colour();
