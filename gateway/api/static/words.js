// Numbers and times as people read them.

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

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** A request as a line for a POSIX shell; `key` stands in for an API key where one is wanted. */
export function curl(url, names, key) {
  // Curl itself gives commas, semicolons and quotes a meaning.
  const files = names.map((name) => quoted(`files=@${/[,;"\\]/.test(name) ? JSON.stringify(name) : name}`));
  const headers = key ? [`-H ${quoted(`X-API-Key: ${key}`)}`] : [];
  return ["curl", ...headers, ...files.map((file) => `-F ${file}`), quoted(url)].join(" ");
}
