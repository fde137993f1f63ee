// Error against cost: one dot per map, and the front of maps that no other map beats.

const COSTS = {
  time: { label: "ms per 1000 tokens", of: (map) => number(map.ms_per_1000_tokens), softmax: number(comparison.softmax.ms_per_1000_tokens), axis: LOG, format: (x) => `${short(x)} ms` },
  memory: { label: "state, bytes", of: (map) => number(map.state_bytes), softmax: number(comparison.softmax.cache_bytes), axis: BYTES, format: bytes },
};
const ERRORS = {
  output: { label: metricNamed("output_error").title, of: (metrics) => number(metrics.output_error) },
  mse: { label: metricNamed("mse").title, of: (metrics) => number(metrics.mse) },
};

// The maps that no other map beats in both error and cost, in order of cost.
function front(dots) {
  const sorted = [...dots].sort((a, b) => a.cost - b.cost || a.error - b.error);
  let best = Infinity;
  return sorted.filter((dot) => {
    const keep = dot.error < best;
    best = Math.min(best, dot.error);
    return keep;
  });
}

function drawPareto() {
  const cost = COSTS[state.cost];
  const error = ERRORS[state.error];
  const host = byId("pareto");
  const focused = host.contains(document.activeElement) ? document.activeElement.dataset.map : null;
  const all = maps.map((map, at) => ({ at, map, cost: cost.of(map), error: error.of(map.summary), bound: number(map.summary.limit_mse), kind: map.summary.limit_kind }));
  const good = all.filter((dot) => dot.cost > 0 && dot.error > 0 && Number.isFinite(dot.cost + dot.error));
  const withBounds = state.error === "mse";
  const ceiling = middle(good.map((dot) => dot.error)) * (withBounds ? 30 : 4);
  const bounds = withBounds ? good.map((dot) => dot.bound).filter((bound) => bound > good.reduce((low, dot) => Math.min(low, dot.error), Infinity) / 1e4) : [];
  const plot = frame(host, {
    height: roomOf(host) < 500 ? 400 : 460,
    xs: range([...good.map((dot) => dot.cost), cost.softmax], 1.35, 1.35),
    ys: range([...good.map((dot) => Math.min(dot.error, ceiling)), error.of(uniform.summary), ...bounds], withBounds ? 2 : 1.4, 1.4),
    xLabel: cost.label,
    yLabel: error.label,
    xAxis: cost.axis,
    title: `${error.label} against ${cost.label}`,
  });
  drawSoftmaxCost(plot, cost);
  drawLevel(plot, error.of(uniform.summary), "uniform weights");
  const best = front(good);
  drawFront(plot, best);
  for (const dot of good) {
    dot.above = dot.error > ceiling;
    Object.assign(dot, { x: plot.x(dot.cost), y: dot.above ? plot.top + 4 : plot.y(dot.error) });
    Object.assign(dot, { text: labels[dot.at] + (dot.above ? ` (${short(dot.error)})` : ""), strong: dot.at === state.map, weight: (dot.at === state.map) * 2 + best.includes(dot) });
  }
  if (withBounds) good.forEach((dot) => drawBound(plot, dot));
  const places = placeLabels(plot, good);
  good.forEach((dot, i) => drawDot(plot, dot, places[i], best.includes(dot), cost, error));
  if (focused !== null && focused !== undefined) host.querySelector(`[data-map="${Number(focused)}"]`)?.focus();
  byId("pareto-reading").textContent = paretoReading(all.filter((dot) => !good.includes(dot)), withBounds, good.some((dot) => dot.above));
}

const middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1] ?? 1;

function drawSoftmaxCost(plot, cost) {
  const x = plot.x(cost.softmax);
  if (!Number.isFinite(x)) return;
  const end = x > plot.right - 120;
  plot.svg.append(
    draw("line", { class: "reference", x1: x, x2: x, y1: plot.top, y2: plot.bottom }),
    draw("text", { class: "note", x: end ? x + 3 : x - 3, y: plot.top - 7, "text-anchor": end ? "end" : "start" }, `softmax ${cost.format(cost.softmax)}`),
  );
}

function drawFront(plot, best) {
  const points = [];
  best.forEach((dot, i) => {
    if (i) points.push([plot.x(dot.cost), plot.y(best[i - 1].error)]);
    points.push([plot.x(dot.cost), plot.y(dot.error)]);
  });
  if (!points.length) return;
  const line = [[points[0][0], plot.top], ...points, [plot.right, points[points.length - 1][1]]];
  plot.svg.append(
    draw("path", { class: "front-area", d: `${path([...line, [plot.right, plot.top]])}Z` }),
    draw("path", { class: "front", d: path(line) }),
  );
  trace(plot, line);
}

// From the dot down to the smallest error of any map with as many features.
function drawBound(plot, dot) {
  if (Number.isNaN(dot.bound)) return;
  const y = dot.bound > 0 ? Math.min(plot.bottom, plot.y(dot.bound)) : plot.bottom;
  const chosen = dot.at === state.map ? " chosen" : "";
  const estimate = dot.kind === "estimate" ? " estimate" : "";
  plot.svg.append(draw("line", { class: `bound-stem${chosen}${estimate}`, x1: dot.x, x2: dot.x, y1: dot.y, y2: y }));
  if (y < plot.bottom) {
    plot.svg.append(draw("line", { class: `bound-mark${chosen}`, x1: dot.x - 7, x2: dot.x + 7, y1: y, y2: y }));
  } else {
    plot.svg.append(draw("path", { class: `bound-arrow${chosen}`, d: `M${dot.x - 4} ${y - 6}L${dot.x + 4} ${y - 6}L${dot.x} ${y}Z` }));
  }
}

function drawDot(plot, dot, place, best, cost, error) {
  const chosen = dot.at === state.map;
  const words = `${dot.map.map}: ${error.label} ${short(dot.error)}, ${cost.format(dot.cost)}`;
  const group = draw("g", { class: `dot${best ? " best" : ""}${chosen ? " chosen" : ""}`, role: "button", tabindex: "0", "data-map": dot.at, "aria-label": words, "aria-pressed": String(chosen) });
  if (place.far) group.append(leader(dot, place));
  group.append(
    draw("title", {}, words),
    draw("circle", { class: "target", cx: dot.x, cy: dot.y, r: 14 }),
    dot.above
      ? draw("path", { class: "mark", d: triangle(dot.x, dot.y) })
      : draw("circle", { class: "mark", cx: dot.x, cy: dot.y, r: chosen ? 7 : 5 }),
    draw("text", { x: place.x + place.w / 2, y: place.y + 12, "text-anchor": "middle" }, dot.text),
  );
  const choose = () => select({ map: dot.at });
  group.addEventListener("click", choose);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose();
  });
  plot.svg.append(group);
}

function paretoReading(missing, withBounds, above) {
  let text = "Lower and further left is better. No other map beats the maps on the line in both error and cost.";
  if (withBounds) text += " The bar under a dot is the limit: the smallest error of any map with as many features. An arrow means that the limit is zero or below the chart.";
  if (withBounds && ESTIMATED) text += " A dashed bar is an estimate of the limit, not a bound.";
  if (above) text += " A triangle marks a map whose error is above the chart.";
  if (missing.length) text += ` Not drawn, because a number is not finite: ${missing.map((dot) => labels[dot.at]).join(", ")}.`;
  return text;
}
