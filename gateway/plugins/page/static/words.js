// Numbers, times and code examples as text.

const whole = new Intl.NumberFormat("en");
const oneDigit = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const twoDigits = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

export const count = (number) => whole.format(number);
export const images = (number) => `${count(number)} ${number === 1 ? "image" : "images"}`;
export const rate = (perSecond) => `${oneDigit.format(perSecond)} per second`;
export const milliseconds = (number) => `${twoDigits.format(number)} ms`;

/** A probability from 0 to 1. */
export function percent(score) {
  const value = score * 100;
  return value > 0 && value < 0.1 ? "<0.1%" : `${value.toFixed(1)}%`;
}

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  const units = ["kB", "MB", "GB"];
  const power = Math.min(Math.floor(Math.log10(size) / 3), units.length);
  return `${oneDigit.format(size / 1000 ** power)} ${units[power - 1]}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${oneDigit.format(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** Escape a text that a spreadsheet may read as a formula with a leading ', as gateway_client/csv_cells.py does. */
const neutral = (text) => (/^[ "'\0\v\f\u00a0\u3000\ufeff]*[=+\-@\t\r\n＝＋－＠]/.test(text) ? `'${text}` : text);

/** Rows as CSV (RFC 4180) without formulas, the first one with the columns' names. */
export function csv(rows) {
  const cell = (value) => {
    const text = typeof value === "string" ? neutral(value) : String(value ?? "");
    return /[",;|\t\r\n']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** A word for a POSIX shell. In double quotes where they suffice, since Windows' command line knows no others. */
function quoted(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!/["$`\\!%\n]/.test(text)) return `"${text}"`;
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** A request as a line for a POSIX shell; `key` is a placeholder for an API key, if one is required. */
export function curl(url, names, key) {
  // Commas, semicolons and quotes have a meaning for curl.
  const files = names.map((name) => quoted(`files=@${/[,;"\\]/.test(name) ? JSON.stringify(name) : name}`));
  const headers = key ? [`-H ${quoted(`X-API-Key: ${key}`)}`] : [];
  return ["curl", ...headers, ...files.map((file) => `-F ${file}`), quoted(url)].join(" ");
}

/** The same with this project's Python client; `base` is the gateway, `wheel` the client's address, `query` the parameters. */
export function pythonClient(base, wheel, query, names, key) {
  const given = [...query].map(([name, value]) => `, ${name}=${/^\d+$/.test(value) && name !== "model" ? value : JSON.stringify(value)}`);
  const credentials = key ? `, api_key=${JSON.stringify(key)}` : "";
  const listed = names.map((name) => JSON.stringify(name)).join(", ");
  return [
    `# pip install ${wheel}`,
    "from gateway_client import Gateway",
    "",
    `with Gateway(${JSON.stringify(base)}${credentials}) as gateway:`,
    `    for result in gateway.classify([${listed}]${given.join("")}):`,
    "        print(result.name, result.best or result.error)",
  ].join("\n");
}
