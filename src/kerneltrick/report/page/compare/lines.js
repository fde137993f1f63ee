// Error against the number of features, and time against the length.

// Charts are drawn at the width of their section, so what is missing must be hidden before.
function hideMissing() {
  const curves = byId("curves-section");
  const timing = byId("timing-section");
  curves.hidden = !comparison.curves.length;
  timing.hidden = !comparison.timing || !comparison.timing.lengths.length;
  curves.parentElement.classList.toggle("single", curves.hidden || timing.hidden);
}

function drawCurves() {
  const families = comparison.curves
    .map(({ family, points }, series) => ({ family, series, points: points.map((p) => ({ map: p.map, m: number(p.features), error: number(state.curve === "mse" ? p.mse : p.output_error), bound: number(p.limit_mse) })) }))
    .map((family) => ({ ...family, points: family.points.filter((p) => p.m > 0 && p.error > 0 && Number.isFinite(p.error)) }))
    .filter((family) => family.points.length);
  if (byId("curves-section").hidden) return;
  const points = families.flatMap((family) => family.points);
  // Errors far above that of uniform weights become a triangle at the upper edge.
  const nothing = number(state.curve === "mse" ? uniform.summary.mse : uniform.summary.whole_error);
  const ceiling = nothing > 0 ? 2 * nothing : Infinity;
  const limit = state.curve === "mse" ? limitLine(comparison.curves.flatMap((c) => c.points)) : [];
  const low = Math.min(...points.map((p) => p.error)) / 1e3;
  const plot = frame(byId("curves"), {
    height: 380,
    xs: range(points.map((p) => p.m), 1.2, 1.2),
    ys: range([...points.map((p) => Math.min(p.error, ceiling)), nothing, ...limit.map(([, bound]) => bound).filter((bound) => bound > low)], 1.5, 1.5),
    xLabel: "features m",
    yLabel: ERRORS[state.curve].label,
    title: "error against the number of features",
  });
  drawLimit(plot, limit.filter(([, bound]) => bound > low));
  for (const { family, series, points } of families) {
    const marks = points.map((p) => ({ x: p.m, y: p.error, words: `${family}, m = ${p.m}: ${short(p.error)}` }));
    drawLine(plot, series, marks, ceiling);
    drawMarks(plot, series, marks, ceiling);
  }
  drawLevel(plot, nothing, "uniform weights");
  const keys = families.map(({ family, series }) => ({ name: family, series }));
  if (limit.length) keys.push({ name: ESTIMATED ? "limit for any map (estimate)" : "limit for any map", dashed: true });
  drawLegend("curves-legend", keys);
  byId("curves-reading").textContent =
    "More features cost more and should reduce the error; the steeper a line falls, the more its features are worth. Above the dotted line, a map is worse than the same weight for every token." +
    (points.some((p) => p.error > ceiling) ? " A triangle marks an error above the chart." : "") +
    (state.curve === "mse" ? " The dashed line is the smallest error of any map with m features; where it ends, the limit is zero or below the chart." : "");
}

// Error against the window: from linear attention on the left towards softmax on the right.
function drawWindows() {
  const section = byId("windows-section");
  const curves = comparison.windows.filter((curve) => curve.points.length);
  section.hidden = !curves.length;
  if (section.hidden) return;
  const of = (p) => number(p.whole_error);
  const nothing = number(uniform.summary.whole_error);
  const ceiling = nothing > 0 ? 2 * nothing : Infinity;
  const lines = curves.map(({ map, points }, series) => ({
    name: map === "softmax" ? "window alone" : shorten(map),
    series,
    points: points
      .filter((p) => of(p) > 0 && Number.isFinite(of(p)))
      .map((p) => ({ x: Math.max(0.5, p.window), y: of(p), window: p.window })), // a logarithm has no 0
  }));
  const all = lines.flatMap((line) => line.points);
  const places = [...new Set(all.map((p) => p.x))];
  const plot = frame(byId("windows"), {
    height: 380,
    xs: range(places, 1.2, 1.2),
    ys: range([...all.map((p) => Math.min(p.y, ceiling)), nothing], 1.5, 1.5),
    xLabel: "window, tokens",
    yLabel: "output error, all heads together",
    xAxis: { scale: logScale, ticks: () => places, format: (x) => (x < 1 ? "0" : whole(x)) },
    title: "error against the window",
  });
  for (const { name, series, points } of lines) {
    drawLine(plot, series, points, ceiling);
    drawMarks(plot, series, points.map((p) => ({ ...p, words: `${name}, window ${p.window}: ${short(p.y)}` })), ceiling);
  }
  drawLevel(plot, nothing, "uniform weights");
  drawLegend("windows-legend", lines);
  byId("windows-above").textContent = all.some((p) => p.y > ceiling) ? " A triangle marks an error above the chart." : "";
}

// One limit for each m, from whichever family measured it.
function limitLine(points) {
  const least = new Map();
  for (const p of points) {
    const bound = number(p.limit_mse);
    if (bound > 0 && Number.isFinite(bound)) least.set(p.features, Math.min(bound, least.get(p.features) ?? Infinity));
  }
  return [...least].sort((a, b) => a[0] - b[0]);
}

function drawLimit(plot, limit) {
  if (!limit.length) return;
  const points = limit.map(([m, bound]) => [plot.x(m), plot.y(bound)]);
  plot.svg.append(draw("path", { class: "limit-area", d: `${path([...points, [points[points.length - 1][0], plot.bottom], [points[0][0], plot.bottom]])}Z` }));
  plot.svg.append(draw("path", { class: "limit", d: path(points) }));
}

function drawTiming() {
  const timing = comparison.timing;
  if (byId("timing-section").hidden) return;
  const crossover = number(timing.crossover);
  const measured = timing.lengths;
  const xs = range(Number.isFinite(crossover) ? [...measured, crossover] : measured, 1.15, 1.25);
  const linearFit = (n) => timing.linear_fit[0] + timing.linear_fit[1] * n;
  const softmaxFit = (n) => timing.softmax_fit[0] + timing.softmax_fit[1] * n + timing.softmax_fit[2] * n * n;
  const sampled = (fit) => Array.from({ length: 81 }, (_, i) => xs[0] * (xs[1] / xs[0]) ** (i / 80)).map((n) => ({ x: n, y: fit(n) }));
  const times = [...timing.linear_ms, ...timing.softmax_ms].map(number);
  const ys = range([...times, Number.isFinite(crossover) ? linearFit(crossover) : NaN], 1.5, 1.6);
  const plot = frame(byId("timing"), { height: 380, xs, ys, xLabel: "length n, tokens", yLabel: "milliseconds", title: "time against length" });
  const lines = [
    { name: timing.baseline, series: "soft", fit: softmaxFit, ms: timing.softmax_ms },
    { name: shorten(timing.map), series: 0, fit: linearFit, ms: timing.linear_ms },
  ];
  if (Number.isFinite(crossover)) drawCrossover(plot, crossover, linearFit(crossover));
  for (const { name, series, fit, ms } of lines) {
    drawLine(plot, series, sampled(fit).filter(({ y }) => y >= ys[0] && y <= ys[1]), Infinity, " thin");
    const found = measured.map((n, i) => ({ x: n, y: number(ms[i]), words: `${name}, n = ${n}: ${short(number(ms[i]))} ms` }));
    drawMarks(plot, series, found.filter(({ y }) => y > 0));
  }
  drawLegend("timing-legend", lines);
  byId("timing-reading").textContent = timingReading(timing, crossover);
}

function drawCrossover(plot, n, ms) {
  const x = plot.x(n);
  const y = plot.y(ms);
  const end = x > (plot.left + plot.right) / 2;
  plot.svg.append(
    draw("line", { class: "reference", x1: x, x2: x, y1: plot.top, y2: plot.bottom }),
    draw("circle", { class: "crossover", cx: x, cy: y, r: 8 }),
    draw("text", { class: "note strong", id: "crossover", x: end ? x - 8 : x + 8, y: plot.top + 12, "text-anchor": end ? "end" : "start" }, `crossover n ≈ ${whole(n)}`),
  );
}

function timingReading(timing, crossover) {
  const [a, b] = timing.linear_fit;
  const [c, e, f] = timing.softmax_fit;
  const sum = (...terms) =>
    terms.filter(([value]) => value !== 0).map(([value, power]) => short(value, 2) + power).join(" + ").replaceAll("+ −", "− ") || "0";
  const linear = sum([a, ""], [b, "·n"]);
  const softmax = sum([c, ""], [e, "·n"], [f, "·n²"]);
  const meeting = Number.isFinite(crossover)
    ? `From n ≈ ${whole(crossover)} on, the map is faster than ${timing.baseline} on this machine.`
    : "The two curves do not cross up to n = 10⁶.";
  return `Dots are measured. The lines are fitted (in milliseconds): ${linear} for ${shorten(timing.map)}, ${softmax} for softmax. ${meeting}`;
}
