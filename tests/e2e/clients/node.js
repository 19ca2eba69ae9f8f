// Node's own fetch and FormData. Usage: node node.js URL PICTURE, with a name on each line of stdin.
const { readFileSync } = require("node:fs");

const [url, picture] = process.argv.slice(2);
const bytes = readFileSync(picture);

(async () => {
  for (const name of readFileSync(0, "utf-8").split("\n").filter(Boolean)) {
    const form = new FormData();
    form.append("files", new Blob([bytes], { type: "image/jpeg" }), name);
    const response = await fetch(url, { method: "POST", body: form });
    console.log(JSON.stringify(await response.json()));
  }
})();
