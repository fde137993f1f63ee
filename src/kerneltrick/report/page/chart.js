// Axes, scales, lines and labels shared by all charts.

// Six colours; the seventh line repeats the first, but dashed and with hollow marks.
const seriesClass = (series) => (typeof series === "number" ? `s${series % 6}${series % 12 > 5 ? " again" : ""}` : `s${series}`);

const linearScale = ([low, high], [from, to]) => (x) => from + ((x - low) / (high - low)) * (to - from);

function logScale([low, high], [from, to]) {
  const a = Math.log10(low);
  const b = Math.log10(high);
  return (x) => from + ((Math.log10(x) - a) / (b - a)) * (to - from);
}

// Multiples of 1, 2 or 5 times a power of ten, as many as fit.
function linearTicks([low, high], room) {
  const least = (high - low) / room;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= least) * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// Powers of ten, with 2 and 5 between them if the range is short and they fit; equal steps if it is
// shorter still.
function logTicks([low, high], room) {
  const decades = Math.log10(high / low);
  const inside = (x) => x >= low * 0.999 && x <= high * 1.001;
  const every = Math.max(1, Math.ceil(decades / room));
  const ticks = (steps) => {
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
      if (steps.length > 1 || e % every === 0) out.push(...steps.map((step) => step * 10 ** e));
    }
    return out.filter(inside);
  };
  const found = ticks(decades * 3 <= room ? [1, 2, 5] : [1]);
  if (found.length > 2) return found;
  if (decades <= 1) return linearTicks([low, high], room);
  return ticks(decades * 3 <= 1.2 * room ? [1, 2, 5] : [1, 3]);
}

// Powers of two, four, … bytes; equal steps of the unit if the range is short.
function byteTicks([low, high], room) {
  const powers = (factor) => Array.from({ length: 60 }, (_, e) => factor ** e).filter((x) => x >= low && x <= high);
  const few = [4, 16, 256].map(powers).find((ticks) => ticks.length <= room) || [];
  if (few.length > 2) return few;
  if (powers(2).length > 2) return powers(2);
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(low) / 10));
  return linearTicks([low / unit, high / unit], room).map((x) => x * unit);
}

const byteTick = (x) => bytes(x).replace(/\.0+(?=\s)/, "");

// The range of the positive finite values, with some margin.
function range(values, below = 1.25, above = 1.25) {
  const good = values.filter((x) => Number.isFinite(x) && x > 0);
  if (!good.length) return [0.1, 1];
  const low = Math.min(...good) / below;
  const high = Math.max(...good) * above;
  return low < high ? [low, high] : [low / 2, high * 2];
}

// An axis: its scale, the places of its ticks, and their format.
const LOG = { scale: logScale, ticks: logTicks, format: tick };
const LINEAR = { scale: linearScale, ticks: linearTicks, format: tick };
const BYTES = { scale: logScale, ticks: byteTicks, format: byteTick };

// An empty plot with axes, which remembers the points of the lines drawn in it:
// {svg, x, y, width, height, left, right, top, bottom, drawn}.
function frame(host, { height, xs, ys, xLabel, yLabel, xAxis = LOG, yAxis = LOG, right = 16, title }) {
  const width = Math.max(280, roomOf(host));
  const top = 38;
  const bottom = height - 46;
  const heights = yAxis.ticks(ys, (bottom - top) / 42).map((value) => [value, yAxis.format(value)]);
  const left = Math.max(width < 500 ? 44 : 56, 12 + Math.ceil(Math.max(...heights.map(([, text]) => widthOf(text, 12)))));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": title });
  const x = xAxis.scale(xs, [left, width - right]);
  const y = yAxis.scale(ys, [bottom, top]);
  for (const [value, text] of heights) {
    svg.append(
      draw("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text),
    );
  }
  svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
  for (const value of xAxis.ticks(xs, (width - left) / 70)) {
    svg.append(
      draw("line", { class: "axis", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 5 }),
      draw("text", { class: "tick", x: x(value), y: bottom + 19, "text-anchor": "middle" }, xAxis.format(value)),
    );
  }
  svg.append(
    draw("text", { class: "axis-label", x: width - right, y: height - 6, "text-anchor": "end" }, `${xLabel} →`),
    draw("text", { class: "axis-label", x: 0, y: 12 }, `↑ ${yLabel}`),
  );
  host.replaceChildren(svg);
  return { svg, x, y, width, height, left, right: width - right, top, bottom, drawn: [] };
}

// Points {x, y, words} of one line; `words` is the title of a point. A point above the ceiling becomes a
// triangle at the upper edge.
const placeOf = (plot, { x, y }, ceiling) => [plot.x(x), y > ceiling ? plot.top + 4 : plot.y(y)];

function drawLine(plot, series, points, ceiling = Infinity, more = "") {
  const places = points.map((point) => placeOf(plot, point, ceiling));
  plot.svg.append(draw("path", { class: `line ${seriesClass(series)}${more}`, d: path(places) }));
  trace(plot, places);
}

// Remembers the course of a line, every few pixels, so that labels can avoid it.
function trace(plot, places) {
  places.slice(1).forEach(([x2, y2], i) => {
    const [x1, y1] = places[i];
    const steps = Math.ceil(Math.hypot(x2 - x1, y2 - y1) / 6);
    for (let step = 0; step <= steps; step += 1) plot.drawn.push([x1 + (step / (steps || 1)) * (x2 - x1), y1 + (step / (steps || 1)) * (y2 - y1)]);
  });
}

function drawMarks(plot, series, points, ceiling = Infinity) {
  for (const point of points) {
    const [x, y] = placeOf(plot, point, ceiling);
    const [shape, where] = point.y > ceiling ? ["path", { d: triangle(x, y) }] : ["circle", { cx: x, cy: y, r: 4 }];
    plot.svg.append(draw(shape, { class: `point ${seriesClass(series)}`, ...where }, draw("title", {}, point.words)));
  }
}

function drawLegend(id, lines) {
  byId(id).replaceChildren(
    ...lines.map(({ name, series, dashed }) => make("span", {}, make("i", { class: `swatch ${dashed ? "dashed" : seriesClass(series)}` }), name)),
  );
}

// A horizontal reference line with its name. It is drawn after the curves but below them, so that the
// name can be placed where it crosses them least, preferably on the right.
function drawLevel(plot, value, name) {
  const y = plot.y(value);
  if (!(y >= plot.top && y <= plot.bottom)) return;
  const w = widthOf(name, 12);
  const crossed = (x, base) => plot.drawn.filter(([px, py]) => px > x - 6 && px < x + w + 6 && py > base - 14 && py < base + 6).length;
  let place = null;
  for (let x = plot.right - w; x > plot.left; x -= 12) {
    for (const base of [y - 5, y + 14]) {
      const count = crossed(x, base);
      if (!place || count < place.count) place = { x, base, count };
    }
  }
  const first = plot.svg.querySelector(".line");
  plot.svg.insertBefore(draw("line", { class: "reference", x1: plot.left, x2: plot.right, y1: y, y2: y }), first);
  plot.svg.insertBefore(draw("text", { class: "note level", x: place.x, y: place.base }, name), first);
}

const triangle = (x, y) => `M${x - 6} ${y + 4}L${x + 6} ${y + 4}L${x} ${y - 6}Z`;

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

// Greedy placement of labels: the first place around the dot that touches no dot, label, line or edge;
// `crowded` if there is none. A dot without a text only occupies its place.
function placeLabels(plot, dots) {
  const square = (x, y, half, cost) => ({ x: x - half, y: y - half, w: 2 * half, h: 2 * half, cost });
  const taken = [...dots.map(({ x, y }) => square(x, y, 7, 50)), ...plot.drawn.map(([x, y]) => square(x, y, 1, 1))];
  const height = 15;
  const order = dots.map((dot, at) => at).sort((a, b) => (dots[b].weight || 0) - (dots[a].weight || 0));
  const places = new Array(dots.length);
  for (const at of order.filter((one) => dots[one].text)) {
    const { x, y, text, strong, optional } = dots[at];
    const w = widthOf(text) * (strong ? 1.15 : 1) + 4;
    const around = [];
    for (const r of optional ? [10, 22] : [10, 22, 36, 52, 70]) {
      for (const [dx, dy] of [[1, 0], [-1, 0], [0.5, -1], [0.5, 1], [-0.5, -1], [-0.5, 1], [0, -1], [0, 1]]) {
        const centre = { x: x + dx * (r + (dx ? w / 2 : 0)), y: y + dy * (r + 2) };
        if (Math.abs(dx) === 0.5) centre.x = x + Math.sign(dx) * (w / 2 + 2);
        around.push({ x: centre.x - w / 2, y: centre.y - height / 2, w, h: height, far: r > 10, cost: 50 });
      }
    }
    const inside = (box) => box.x >= plot.left && box.x + box.w <= plot.right + 8 && box.y >= plot.top - 8 && box.y + box.h <= plot.bottom;
    const clashes = (box) => taken.reduce((sum, other) => sum + (overlap(box, other) ? other.cost : 0), 0);
    const allowed = around.filter(inside);
    const free = allowed.find((box) => !clashes(box));
    const best = free || allowed.sort((a, b) => clashes(a) - clashes(b))[0] || around[0];
    best.crowded = !free;
    if (free || !optional) taken.push(best);
    places[at] = best;
  }
  return places;
}

// From the edge of a dot to the near edge of its label.
function leader({ x, y }, place) {
  const near = (at, from, size) => Math.min(Math.max(at, from), from + size);
  const [toX, toY] = [near(x, place.x, place.w), near(y, place.y, place.h)];
  const share = Math.min(1, 6 / Math.hypot(toX - x, toY - y));
  return draw("line", { class: "leader", x1: x + share * (toX - x), y1: y + share * (toY - y), x2: toX, y2: toY });
}

// Labels that cannot be clicked; an optional one is omitted if there is no room.
function drawLabels(plot, dots) {
  const places = placeLabels(plot, dots);
  dots.forEach((dot, at) => {
    const place = places[at];
    if (!place || (dot.optional && place.crowded)) return;
    if (place.far) plot.svg.append(leader(dot, place));
    plot.svg.append(draw("text", { class: dot.strong ? "note strong" : "note", x: place.x + place.w / 2, y: place.y + 12, "text-anchor": "middle" }, dot.text));
  });
}

const measure = document.createElement("canvas").getContext("2d");
function widthOf(text, size = 12.5) {
  measure.font = font(size);
  return measure.measureText(text).width;
}
