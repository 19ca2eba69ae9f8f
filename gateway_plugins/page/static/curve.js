// A curve by day with its intervals, as SVG, and the same as a table.

const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [520, 180, 62, 24, 10, 12];
/** The namespace of SVG, of an element that the page has. */
const NAMESPACE = document.querySelector("svg").namespaceURI;

/**
 * The curve of `points` (`{ day, images, value, low, high, chance }`), from 0 to `most`; `words` formats a value, and
 * `title` is for those who do not see it. `chance`, if points have it, is drawn as a dashed line.
 */
export function curve(points, { most, words, title }) {
  const node = document.createElement("figure");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}; the table below has its values` });
  const across = (position) => LEFT + (points.length === 1 ? (WIDTH - LEFT - RIGHT) / 2 : (position * (WIDTH - LEFT - RIGHT)) / (points.length - 1));
  const up = (value) => HEIGHT - BOTTOM - (Math.min(value, most) / most) * (HEIGHT - BOTTOM - TOP);
  for (const share of [0, 0.5, 1]) {
    const y = up(share * most);
    drawing.append(svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    drawing.append(text(words(share * most), { x: LEFT - 8, y: y + 4, "text-anchor": "end" }));
  }
  const line = (name) => points.map((point, position) => `${across(position)},${up(point[name])}`);
  if (points.length > 1) {
    drawing.append(svg("polygon", { class: "band", points: [...line("high"), ...line("low").toReversed()].join(" ") }));
    if (points[0].chance !== undefined) drawing.append(svg("polyline", { class: "chance", points: line("chance").join(" ") }));
    drawing.append(svg("polyline", { class: "values", points: line("value").join(" ") }));
  }
  points.forEach((point, position) => {
    const x = across(position);
    if (points.length === 1) drawing.append(svg("line", { class: "whisker", x1: x, x2: x, y1: up(point.low), y2: up(point.high) }));
    const dot = svg("circle", { class: "dot", cx: x, cy: up(point.value), r: 4 });
    const hint = svg("title", {});
    hint.textContent = `${point.day}: ${words(point.value)} (${words(point.low)} to ${words(point.high)}), ${point.images} images`;
    dot.append(hint);
    drawing.append(dot);
  });
  drawing.append(text(points[0].day, { x: LEFT, y: HEIGHT - 6, "text-anchor": "start" }));
  if (points.length > 1) drawing.append(text(points.at(-1).day, { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }));
  node.append(drawing, table(points, words));
  return node;
}

function table(points, words) {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "As a table";
  const rows = document.createElement("table");
  rows.append(row("th", ["Day", "Images", "Value", "Interval of 95 %"]));
  for (const { day, images, value, low, high } of points) rows.append(row("td", [day, images, words(value), `${words(low)} to ${words(high)}`]));
  details.append(summary, rows);
  return details;
}

function row(tag, cells) {
  const node = document.createElement("tr");
  for (const cell of cells) {
    const part = document.createElement(tag);
    part.textContent = cell;
    node.append(part);
  }
  return node;
}

function text(words, attributes) {
  const node = svg("text", attributes);
  node.textContent = words;
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
