// Recall against state size: the front, the table, and the training runs of a row.

const { settings, points, trainings, published } = values;
const mixers = [...new Set(points.map((point) => point.mixer))];
const series = (mixer) => mixers.indexOf(mixer);

offer({ published: ["shown", "hidden"] });
Object.assign(state, { point: points.findIndex((point) => point.on_front) });

const COLUMNS = [
  { key: "mixer", label: "mixer", text: ({ point }) => point.mixer, of: ({ point }) => point.mixer },
  { key: "width", label: "width", write: whole },
  { key: "bytes", label: "state", write: bytes, help: "four bytes for each number in the state" },
  { key: "accuracy", label: "correct", write: percent, help: "share of correct answers, mean over seeds" },
  { key: "lowest", label: "lowest", write: percent, help: "the worst seed" },
  { key: "highest", label: "highest", write: percent, help: "the best seed" },
  { key: "rate", label: "rate", write: (x) => short(x, 2), help: "learning rate: the best one tried" },
  { key: "on_front", label: "front", write: (x) => (x ? "●" : ""), help: "nothing of this size or smaller has more correct answers" },
].map((column) => ({ of: ({ point }) => Number(point[column.key]), ...column }));
sorting.points = { key: "bytes", direction: 1 };

function drawHeader() {
  const task = settings.task;
  fillHeader({
    told: task.told,
    facts: [
      ["models trained", whole(trainings.length)],
      ["training steps", whole(settings.steps)],
      ["batch size", whole(settings.batch)],
      ["seeds", whole(settings.seeds)],
      ["learning rates", settings.rates.map((rate) => short(rate, 2)).join(", ")],
      ["chance", percent(task.chance)],
      ["CPU time", `${whole(trainings.reduce((sum, training) => sum + training.seconds, 0) / 60)} min`],
    ],
    colophon: "Each model has two layers: a gated short convolution, then the mixer.",
  });
  const known = Object.keys(published).length > 0;
  byId("published").hidden = !known;
  if (known) byId("published-reading").textContent = `Published points come from other models on a task with a vocabulary of 8192 and up to 256 pairs${task.vocabulary === 8192 ? "" : ", which is harder than this one, so do not compare them directly with these dots"}.`;
}

function drawRecall() {
  const others = state.published === "shown" ? Object.entries(published).flatMap(([name, found]) => found.map(([x, y]) => ({ name, x, y }))) : [];
  const plot = frame(byId("recall"), {
    height: 480,
    xs: range([...points.map((p) => p.bytes), ...others.map((p) => p.x)], 1.5, 1.5),
    ys: [0, 1.04],
    xLabel: "state, bytes",
    yLabel: "correct answers",
    xAxis: BYTES,
    yAxis: { ...LINEAR, ticks: () => [0, 0.25, 0.5, 0.75, 1], format: percent },
    title: "correct answers against state size",
  });
  const best = points.filter((p) => p.on_front).sort((a, b) => a.bytes - b.bytes);
  const steps = best.flatMap((p, i) => [...(i ? [[plot.x(p.bytes), plot.y(best[i - 1].accuracy)]] : []), [plot.x(p.bytes), plot.y(p.accuracy)]]);
  const front = [...steps, [plot.right, steps[steps.length - 1][1]]];
  plot.svg.append(draw("path", { class: "front", d: path(front) }));
  trace(plot, front);
  for (const mixer of mixers) {
    const own = points.filter((p) => p.mixer === mixer).sort((a, b) => a.bytes - b.bytes);
    drawLine(plot, series(mixer), own.map((p) => ({ x: p.bytes, y: p.accuracy })), Infinity, " thin pale");
  }
  for (const { name, x, y } of others) {
    plot.svg.append(draw("path", { class: "published", d: triangle(plot.x(x), plot.y(y)) }, draw("title", {}, `published, ${name}: ${percent(y)} at ${bytes(x)}`)));
  }
  points.forEach((p, at) => drawPoint(plot, p, at));
  drawNames(plot, others);
  drawLegend("recall-legend", mixers.map((mixer) => ({ name: mixer, series: series(mixer) })));
}

function drawPoint(plot, p, at) {
  const [x, y] = [plot.x(p.bytes), plot.y(p.accuracy)];
  const words = `${p.mixer}, width ${p.width}: ${percent(p.accuracy)} (${percent(p.lowest)} to ${percent(p.highest)}) at ${bytes(p.bytes)}`;
  const dot = draw("g", { class: `dot${at === state.point ? " chosen" : ""}`, tabindex: 0, role: "button", "aria-label": words, "aria-pressed": String(at === state.point), "data-point": at },
    draw("title", {}, words),
    draw("circle", { class: "target", cx: x, cy: y, r: 12 }),
    draw("line", { class: "bound-stem", x1: x, x2: x, y1: plot.y(p.lowest), y2: plot.y(p.highest) }),
    draw("circle", { class: `point ${seriesClass(series(p.mixer))}`, cx: x, cy: y, r: p.on_front ? 6 : 4.5 }));
  dot.addEventListener("click", () => choose(at));
  dot.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(at);
  });
  plot.svg.append(dot);
}

// Names where there is room for them; the others are in the titles, the legend and the table.
function drawNames(plot, others) {
  const last = (p) => points.every((other) => other.mixer !== p.mixer || other.bytes <= p.bytes);
  const dots = points.map((p, at) => {
    const weight = (at === state.point) * 4 + p.on_front * 2 + last(p);
    return { x: plot.x(p.bytes), y: plot.y(p.accuracy), text: weight ? `${p.mixer} ${p.width}` : "", weight, strong: weight > 1, optional: true };
  });
  dots.push(...others.map(({ name, x, y }) => ({ x: plot.x(x), y: plot.y(y), text: name, weight: 0, optional: true })));
  drawLabels(plot, dots);
}

function drawCurves() {
  const point = points[state.point];
  const own = trainings.filter((t) => t.mixer === point.mixer && t.width === point.width && t.curve.length);
  byId("curves-title").textContent = `Training runs of ${point.mixer}, width ${point.width}`;
  const guessing = -Math.log(settings.task.chance);
  const curves = own.map((t) => t.curve.map(([step, loss]) => ({ x: step, y: Math.max(number(loss), 1e-9) })));
  const plot = frame(byId("curves"), {
    height: 340,
    xs: range(curves.flat().map(({ x }) => x), 1.1, 1.1),
    ys: range([...curves.flat().map(({ y }) => y), guessing], 1.3, 1.3),
    xLabel: "step",
    yLabel: "loss",
    title: "loss against steps",
  });
  curves.forEach((curve, i) => drawLine(plot, i, curve));
  drawLevel(plot, guessing, "guessing");
  const told = (t) => `seed ${t.seed}, rate ${short(t.rate, 2)}: ${percent(t.accuracy)}${t.steps < settings.steps ? `, stopped at step ${t.steps} because the loss was NaN` : ""}`;
  drawLegend("curves-legend", own.map((t, i) => ({ name: told(t), series: i })));
}

function choose(at) {
  state.point = at;
  const focused = byId("recall").contains(document.activeElement);
  view.draw();
  if (focused) byId("recall").querySelector(`[data-point="${at}"]`).focus();
}

view.draw = () => {
  drawRecall();
  drawTable("points", COLUMNS, points.map((point, at) => ({ point, at })), (row) => row.at === state.point, (row) => choose(row.at));
  drawCurves();
};

readAddress();
drawHeader();
segmented("published", "published", ["shown", "hidden"], drawRecall);
show();
