// Axes, scales and labels shared by all charts.

const swatch = (series, dashed = false) => make("i", { class: `swatch s${series}${dashed ? " dashed" : ""}` });

const linearScale = ([low, high], [from, to]) => (x) => from + ((x - low) / (high - low)) * (to - from);

function logScale([low, high], [from, to]) {
  const a = Math.log10(low);
  const b = Math.log10(high);
  return (x) => from + ((Math.log10(x) - a) / (b - a)) * (to - from);
}

// Decades, with 2 and 5 between them where the range is short and there is room.
function logTicks([low, high], room) {
  const decades = Math.log10(high / low);
  const steps = decades * 3 <= room ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / room));
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
    if (steps.length === 1 && e % every) continue;
    for (const step of steps) out.push(step * 10 ** e);
  }
  return out.filter((x) => x >= low * 0.999 && x <= high * 1.001);
}

// The range of the positive finite values, with some air.
function range(values, below = 1.25, above = 1.25) {
  const good = values.filter((x) => Number.isFinite(x) && x > 0);
  if (!good.length) return [0.1, 1];
  const low = Math.min(...good) / below;
  const high = Math.max(...good) * above;
  return low < high ? [low, high] : [low / 2, high * 2];
}

// Before printing the page still has the width of the screen, so the paper's is given here.
function roomOf(host) {
  if (!printing) return host.clientWidth;
  return host.closest(".pair") ? 340 : 700;
}

// With ticks of its own the vertical axis is linear, else it is logarithmic.
// An empty plot with axes: {svg, x, y, width, height, left, right, top, bottom}.
function frame(host, { height, xs, ys, xLabel, yLabel, xTicks = null, xFormat = tick, yFormat = tick, yTicks = null, right = 16, title }) {
  const width = Math.max(280, roomOf(host));
  const left = width < 500 ? 44 : 56;
  const top = 38;
  const bottom = height - 46;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": title });
  const x = logScale(xs, [left, width - right]);
  const y = (yTicks ? linearScale : logScale)(ys, [bottom, top]);
  for (const value of yTicks || logTicks(ys, (bottom - top) / 42)) {
    svg.append(
      draw("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, yFormat(value)),
    );
  }
  svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
  for (const value of xTicks || logTicks(xs, (width - left) / 70)) {
    svg.append(
      draw("line", { class: "axis", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 5 }),
      draw("text", { class: "tick", x: x(value), y: bottom + 19, "text-anchor": "middle" }, xFormat(value)),
    );
  }
  svg.append(
    draw("text", { class: "axis-label", x: width - right, y: height - 6, "text-anchor": "end" }, `${xLabel} →`),
    draw("text", { class: "axis-label", x: 0, y: 12 }, `↑ ${yLabel}`),
  );
  host.replaceChildren(svg);
  return { svg, x, y, width, height, left, right: width - right, top, bottom };
}

// A horizontal line with its name, for what every curve is measured against.
function drawLevel(plot, value, name, atLeft = false) {
  const y = plot.y(value);
  if (!(y >= plot.top && y <= plot.bottom)) return;
  plot.svg.append(
    draw("line", { class: "reference", x1: plot.left, x2: plot.right, y1: y, y2: y }),
    draw("text", { class: "note level", x: atLeft ? plot.left + 4 : plot.right, y: atLeft ? y + 14 : y - 5, "text-anchor": atLeft ? "start" : "end" }, name),
  );
}

const triangle = (x, y) => `M${x - 6} ${y + 4}L${x + 6} ${y + 4}L${x} ${y - 6}Z`;

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

// Greedy labels: the first place around the dot that touches no dot, no label, no line and no edge.
// `lines` is a path of horizontal and vertical steps.
function placeLabels(plot, dots, lines, textWidth) {
  const taken = dots.map(({ x, y }) => ({ x: x - 7, y: y - 7, w: 14, h: 14 }));
  for (let i = 1; i < lines.length; i += 1) {
    const [[x1, y1], [x2, y2]] = [lines[i - 1], lines[i]];
    taken.push({ x: Math.min(x1, x2) - 1, y: Math.min(y1, y2) - 1, w: Math.abs(x2 - x1) + 2, h: Math.abs(y2 - y1) + 2 });
  }
  const height = 15;
  const order = dots.map((dot, at) => at).sort((a, b) => (dots[b].weight || 0) - (dots[a].weight || 0));
  const places = new Array(dots.length);
  for (const at of order) {
    const { x, y, text } = dots[at];
    const w = textWidth(text);
    const around = [];
    for (const r of [10, 22, 36, 52]) {
      for (const [dx, dy] of [[1, 0], [-1, 0], [0.5, -1], [0.5, 1], [-0.5, -1], [-0.5, 1], [0, -1], [0, 1]]) {
        const centre = { x: x + dx * (r + (dx ? w / 2 : 0)), y: y + dy * (r + 2) };
        if (Math.abs(dx) === 0.5) centre.x = x + Math.sign(dx) * (w / 2 + 2);
        around.push({ x: centre.x - w / 2, y: centre.y - height / 2, w, h: height, far: r > 10 });
      }
    }
    const inside = (box) => box.x >= plot.left && box.x + box.w <= plot.right + 8 && box.y >= plot.top - 8 && box.y + box.h <= plot.bottom;
    const clashes = (box) => taken.filter((other) => overlap(box, other)).length;
    const allowed = around.filter(inside);
    const best = allowed.find((box) => !clashes(box)) || allowed.sort((a, b) => clashes(a) - clashes(b))[0] || around[0];
    taken.push(best);
    places[at] = best;
  }
  return places;
}

const measure = document.createElement("canvas").getContext("2d");
function widthOf(text, size = 12.5) {
  measure.font = font(size);
  return measure.measureText(text).width;
}
