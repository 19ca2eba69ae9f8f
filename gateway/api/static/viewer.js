const $ = (id) => document.getElementById(id);

/** The dialog with one picture in full; `entries` gives those that can be leafed through. */
export class Viewer {
  #entries;
  #entry = null;

  constructor(entries) {
    this.#entries = entries;
    $("viewer-close").addEventListener("click", () => $("viewer").close());
    $("viewer-previous").addEventListener("click", () => this.#step(-1));
    $("viewer-next").addEventListener("click", () => this.#step(1));
    $("viewer").addEventListener("close", () => this.#release());
    $("viewer").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.#step(-1);
      if (event.key === "ArrowRight") this.#step(1);
    });
    $("viewer").addEventListener("click", (event) => {
      if (event.target === $("viewer")) $("viewer").close();
    });
  }

  open(entry) {
    this.#release();
    this.#entry = entry;
    $("viewer-image").src = URL.createObjectURL(entry.file);
    $("viewer-image").alt = entry.name;
    $("viewer-name").textContent = entry.name;
    $("viewer-answer").textContent = entry.inWords;
    $("viewer-previous").disabled = !this.#neighbour(-1);
    $("viewer-next").disabled = !this.#neighbour(1);
    if (!$("viewer").open) $("viewer").showModal();
  }

  #release() {
    if (this.#entry) URL.revokeObjectURL($("viewer-image").src);
    $("viewer-image").removeAttribute("src");
    this.#entry = null;
  }

  #neighbour(step) {
    const entries = this.#entries();
    let position = entries.indexOf(this.#entry);
    if (position < 0) return undefined;
    do position += step;
    while (entries[position]?.previewable === false);
    return entries[position];
  }

  #step(step) {
    const entry = this.#neighbour(step);
    if (entry) this.open(entry);
  }
}
