// Recall against the bytes of the state: the front, the table, and the trainings of a row.

const { settings, points, trainings, published } = values;
const mixers = [...new Set(points.map((point) => point.mixer))];
const shown = { point: points.findIndex((point) => point.on_front), published: "yes", theme: 0, key: "bytes", direction: 1 };
const THEMES = ["auto", "light", "dark"];
const colour = (mixer) => mixers.indexOf(mixer) % 6;

const COLUMNS = [
  { key: "mixer", label: "mixer", of: (p) => p.mixer },
  { key: "width", label: "width", of: (p) => p.width, write: whole },
  { key: "bytes", label: "state", of: (p) => p.bytes, write: bytes, help: "four for each number that the state holds" },
  { key: "accuracy", label: "recall", of: (p) => p.accuracy, write: percent, help: "share of queries answered, mean over seeds" },
  { key: "lowest", label: "lowest", of: (p) => p.lowest, write: percent },
  { key: "highest", label: "highest", of: (p) => p.highest, write: percent },
  { key: "rate", label: "rate", of: (p) => p.rate, write: (x) => short(x, 2), help: "learning rate, the best of those tried" },
  { key: "on_front", label: "front", of: (p) => Number(p.on_front), write: (x) => (x ? "●" : "") },
];

function drawHeader() {
  const task = settings.task;
  byId("task").textContent = `${task.pairs} keys with their values in texts of ${task.length} tokens, out of a vocabulary of ${whole(task.vocabulary)}; later each key comes again: which value was it?`;
  const facts = [
    ["models trained", whole(trainings.length)],
    ["steps of each", whole(settings.steps)],
    ["texts in a step", whole(settings.batch)],
    ["seeds", whole(settings.seeds)],
    ["learning rates", settings.rates.map((rate) => short(rate, 2)).join(", ")],
    ["chance", percent(1 / (task.vocabulary / 2))],
    ["processor time", `${whole(trainings.reduce((sum, training) => sum + training.seconds, 0) / 60)} min`],
  ];
  byId("facts").append(...facts.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, text))));
  byId("colophon").textContent = `Made by kerneltrick ${values.version}. Two layers: a gated short convolution, then the mixer.`;
  byId("published-reading").textContent = `Published points are those of other people's models on a task with a vocabulary of 8192 and up to 256 pairs${task.vocabulary === 8192 ? "" : ", harder than this one: not to be compared with these dots one by one"}.`;
}

function drawRecall() {
  const host = byId("recall");
  const others = shown.published === "yes" ? Object.entries(published).flatMap(([name, found]) => found.map(([x, y]) => ({ name, x, y }))) : [];
  const xs = range([...points.map((p) => p.bytes), ...others.map((p) => p.x)], 1.5, 1.5);
  const plot = frame(host, {
    height: 480, xs, ys: [0, 1.04], yTicks: [0, 0.25, 0.5, 0.75, 1], xLabel: "state, bytes", yLabel: "recall",
    xFormat: bytes, yFormat: percent, title: "recall against bytes of the state",
    xTicks: [...Array(40).keys()].map((e) => 4 ** e).filter((x) => x >= xs[0] && x <= xs[1]),
  });
  const best = points.filter((p) => p.on_front).sort((a, b) => a.bytes - b.bytes);
  const line = best.flatMap((p, i) => [...(i ? [[plot.x(p.bytes), plot.y(best[i - 1].accuracy)]] : []), [plot.x(p.bytes), plot.y(p.accuracy)]]);
  plot.svg.append(draw("path", { class: "front", d: path([...line, [plot.right, line[line.length - 1][1]]]) }));
  for (const mixer of mixers) {
    const own = points.filter((p) => p.mixer === mixer).sort((a, b) => a.bytes - b.bytes);
    plot.svg.append(draw("path", { class: `line thin s${colour(mixer)}`, opacity: 0.45, d: path(own.map((p) => [plot.x(p.bytes), plot.y(p.accuracy)])) }));
  }
  for (const { name, x, y } of others) {
    plot.svg.append(
      draw("path", { class: "bound-arrow", d: triangle(plot.x(x), plot.y(y)) }, draw("title", {}, `published, ${name}: ${percent(y)} at ${bytes(x)}`)),
      draw("text", { class: "note", x: plot.x(x) + 9, y: plot.y(y) + 4 }, name),
    );
  }
  const last = (p) => points.every((other) => other.mixer !== p.mixer || other.bytes <= p.bytes);
  const dots = points.map((p, at) => ({ at, p, x: plot.x(p.bytes), y: plot.y(p.accuracy), text: `${p.mixer} ${p.width}`, weight: (at === shown.point) * 4 + p.on_front * 2 + last(p) }));
  const places = placeLabels(plot, dots.filter((dot) => dot.weight), line, (text) => widthOf(text) + 4);
  for (const { p, at, x, y } of dots) {
    const words = `${p.mixer}, width ${p.width}: ${percent(p.accuracy)} (${percent(p.lowest)} to ${percent(p.highest)}) at ${bytes(p.bytes)}`;
    const dot = draw("g", { class: `dot${at === shown.point ? " chosen" : ""}`, tabindex: 0, role: "button", "aria-label": words, "data-point": at },
      draw("line", { class: "bound-stem", x1: x, x2: x, y1: plot.y(p.lowest), y2: plot.y(p.highest) }),
      draw("circle", { class: `point s${colour(p.mixer)}`, cx: x, cy: y, r: p.on_front ? 6 : 4.5 }),
      draw("title", {}, words));
    dot.addEventListener("click", () => choose(at));
    dot.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") choose(at); });
    plot.svg.append(dot);
  }
  dots.filter((dot) => dot.weight).forEach((dot, i) => {
    plot.svg.append(draw("text", { class: dot.weight > 1 ? "note strong" : "note", x: places[i].x + 2, y: places[i].y + 11 }, dot.text));
  });
  byId("recall-legend").replaceChildren(...mixers.map((mixer) => make("span", {}, swatch(colour(mixer)), mixer)));
}

function drawTable() {
  const column = COLUMNS.find((c) => c.key === shown.key);
  const order = points.map((point, at) => ({ point, at })).sort((a, b) => {
    const [x, y] = [column.of(a.point), column.of(b.point)];
    return (x < y ? -1 : Number(x > y)) * shown.direction;
  });
  const head = COLUMNS.map((c) => {
    const button = make("button", { type: "button", title: c.help, "data-key": c.key }, c.label);
    button.addEventListener("click", () => {
      Object.assign(shown, { key: c.key, direction: shown.key === c.key ? -shown.direction : 1 });
      drawTable();
    });
    const active = shown.key === c.key;
    return make("th", { scope: "col", "aria-sort": active ? (shown.direction > 0 ? "ascending" : "descending") : "none" }, button);
  });
  const body = order.map(({ point, at }) => {
    const line = make("tr", { "aria-current": at === shown.point ? "true" : null },
      ...COLUMNS.map((c, i) => (i ? make("td", { "data-key": c.key }, c.write(c.of(point))) : make("th", { scope: "row" }, make("button", { type: "button" }, point.mixer)))));
    line.addEventListener("click", () => choose(at));
    return line;
  });
  byId("points-table").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

function drawCurves() {
  const point = points[shown.point];
  const own = trainings.filter((t) => t.mixer === point.mixer && t.width === point.width && t.curve.length);
  byId("curves-title").textContent = `Trainings of ${point.mixer}, width ${point.width}`;
  const guessing = Math.log(settings.task.vocabulary / 2);
  const losses = own.flatMap((t) => t.curve.map(([, loss]) => loss));
  const plot = frame(byId("curves"), {
    height: 340, xs: range(own.flatMap((t) => t.curve.map(([step]) => step)), 1.1, 1.1), ys: range([...losses, guessing], 1.3, 1.3),
    xLabel: "step", yLabel: "loss", title: "loss against steps",
  });
  drawLevel(plot, guessing, "guessing a value");
  own.forEach((t, i) => plot.svg.append(draw("path", { class: `line s${i % 6}`, d: path(t.curve.map(([step, loss]) => [plot.x(step), plot.y(Math.max(loss, 1e-9))])) })));
  byId("curves-legend").replaceChildren(...own.map((t, i) => make("span", {}, swatch(i % 6), `seed ${t.seed}, rate ${short(t.rate, 2)}: ${percent(t.accuracy)}${t.steps < settings.steps ? `, stopped at step ${t.steps}: its loss was no number` : ""}`)));
}

function choose(at) {
  shown.point = at;
  drawAll();
}

function drawAll() {
  document.documentElement.dataset.theme = printing ? "light" : THEMES[shown.theme];
  byId("theme-name").textContent = ["Auto", "Light", "Dark"][shown.theme];
  drawRecall();
  drawTable();
  drawCurves();
}

drawHeader();
segmented(byId("published"), [["yes", "shown"], ["no", "hidden"]], shown.published, (value) => {
  shown.published = value;
  drawRecall();
});
byId("theme").addEventListener("click", () => {
  shown.theme = (shown.theme + 1) % 3;
  drawAll();
});
addEventListener("beforeprint", () => { printing = true; drawAll(); });
addEventListener("afterprint", () => { printing = false; drawAll(); });
drawAll();
let width = byId("recall").clientWidth;
new ResizeObserver(() => {
  if (byId("recall").clientWidth === width) return;
  width = byId("recall").clientWidth;
  drawAll();
}).observe(byId("recall"));
