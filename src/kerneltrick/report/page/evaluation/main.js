// A linearised model: its quality, how it was made, its speed, and text it generates.

const record = values.record || {};
const SERIES = { teacher: "soft", hybrid: 0, "window alone": 1, "map alone": 2, "window for all heads": 3 };
const HELP = {
  perplexity: "exp of the mean loss; lower is better",
  agreement: "how often the most likely next token is the teacher's",
  cosine: "mean cosine similarity of the embeddings to the teacher's",
  pairs: "rank correlation with the teacher's similarities, over all pairs of texts",
  nearest: "how often the nearest neighbour is the teacher's",
};
// What the figures mean, by the beginnings of their names.
const MEANINGS = [
  ["perplexity", "Perplexity: exp of the mean loss; lower is better."],
  ["0–", "0–63, …: perplexity at these positions."],
  ["agreement", "Agreement: how often its most likely next token is also the teacher's."],
  ["recall", "Recall: how often it repeats, at the end, a number planted at that depth of the text."],
  ["cosine", "Cosine: similarity of its embeddings to the teacher's; 1 means identical."],
  ["pairs", "Pairs: rank correlation with the teacher's similarities, over all pairs of texts."],
  ["nearest", "Nearest: how often its nearest other text is also the teacher's."],
];
const isShare = (name) => /agreement|recall|nearest/.test(name);

// A share of trials, with its standard error.
const sureness = (row, name) => (row.errors && row.errors[name] ? ` ± ${percent(number(row.errors[name]))}` : "");

function helpOf(name) {
  if (/^\d/.test(name)) return `perplexity of the tokens at positions ${name}`;
  return HELP[name] || "how often it repeats, at the end, a number planted at that depth of the text";
}

function drawHeader() {
  const facts = [["windows", whole(values.windows)], ["tokens per window", whole(values.length)]];
  if (record.fit) facts.push(["fitting steps", whole(record.fit.steps)]);
  if (record.tuned) facts.push(["trained end to end", record.tuned.trained], ["training tokens", whole(record.tuned.tokens)]);
  fillHeader({
    source: values.source,
    told: values.verdict,
    notes: record.window ? [`Window: ${record.window}.`] : [],
    facts,
    colophon: "Times were measured on the machine that made this file.",
  });
}

function drawRows() {
  const names = Object.keys(values.rows[0].figures);
  const columns = [
    { key: "name", label: "attention", text: (row) => row.name, of: (row) => row.at },
    ...names.map((name) => ({ key: name, label: name, help: helpOf(name), write: isShare(name) ? percent : (x) => short(x, 4), more: (row) => sureness(row, name), of: (row) => number(row.figures[name]) })),
    { key: "state", label: "state", help: `bytes per stream after ${values.length} tokens`, write: bytes, of: (row) => number(row.state_bytes) },
  ];
  const held = values.rows.some((row) => row.state_bytes !== null);
  drawTable("rows", held ? columns : columns.slice(0, -1), values.rows.map((row, at) => ({ ...row, at, fixed: true })));
  byId("figures-reading").textContent = MEANINGS.filter(([start]) => names.some((name) => name.startsWith(start))).map(([, words]) => words).join(" ");
}

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;
const errorsOf = (name) => Object.values(record.fit[name]).flat().map(number);

function drawHeads() {
  byId("heads-section").hidden = !record.fit;
  if (!record.fit) return;
  const kept = record.kept || {};
  for (const name of ["before", "after"]) {
    const layers = Object.keys(record.fit[name]);
    const errors = Object.values(record.fit[name]);
    byId(`${name}-title`).textContent = `${name} the fit: mean ${short(mean(errorsOf(name)))}`;
    const named = layers.map((layer) => (name === "after" && layer in kept ? `${layer}: softmax` : layer));
    layMosaic(byId(name), named, [...errors[0].keys()], (l, head) => paintCell(make("span", { class: "cell", role: "img" }), layers[l], head, number(errors[l][head])));
  }
  byId("scale").style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(errorColour).join(", ")})`;
  const reasons = new Map();
  for (const [layer, why] of Object.entries(kept)) reasons.set(why, [...(reasons.get(why) || []), layer]);
  byId("kept").textContent = [...reasons].map(([why, layers]) => `${layers.length > 1 ? "Layers" : "Layer"} ${layers.join(", ")} ${layers.length > 1 ? "keep" : "keeps"} softmax: ${why}.`).join(" ");
}

// What each key–value head sees, and the quality with other numbers of heads that see everything.
function drawWhole() {
  const heads = record.heads;
  byId("whole-section").hidden = !heads;
  if (heads) {
    const scores = Object.values(heads.scores)[0];
    const named = (by, l, h) => ((by || {})[l] || []).includes(h);
    const near = `a window of ${heads.window} tokens and ${heads.sinks} sinks`;
    const kinds = ["the whole text", `${near}, and a map`, near];
    const mapped = Boolean(record.bare); // it is known which maps helped
    const kind = (l, h) => (named(heads.whole, l, h) ? 0 : mapped && !named(record.bare, l, h) ? 1 : 2);
    const counts = [0, 0, 0];
    scores.forEach((row, l) => row.forEach((_, h) => { counts[kind(l, h)] += 1; }));
    layMosaic(byId("whole"), [...scores.keys()], [...scores[0].keys()], (l, h) => {
      const words = `layer ${l}, head ${h}: ${kinds[kind(l, h)]}`;
      const cell = make("span", { class: "cell", role: "img", "aria-label": words, title: words });
      cell.style.backgroundColor = errorColour([1, 0.35, 0][kind(l, h)]);
      return cell;
    });
    const others = mapped
      ? `${counts[1]} have a window of ${heads.window} tokens, ${heads.sinks} sinks and a map (weaker colour), and ${counts[2]} do without a map, which did not help.`
      : `the others see ${near}.`;
    byId("whole-reading").textContent = `Each square is a key–value head. ${counts[0]} of ${scores.length * scores[0].length} see the whole text (strong colour); ${others}`;
  }
  const curve = values.curve || [];
  byId("curve-section").hidden = curve.length < 2;
  if (curve.length < 2) return;
  const what = "perplexity" in values.rows[0].figures ? "perplexity" : "cosine";
  const points = curve.map((p) => ({ x: p.heads, y: number(p.quality), words: `${p.heads} heads (${percent(p.share)}): ${what} ${short(number(p.quality), 4)}${p.knee ? ", the knee" : ""}` }));
  const plot = drawLines("curve", [{ series: 0, points }], { xs: [0, Math.max(1, ...points.map((p) => p.x))], xAxis: LINEAR, xLabel: "heads that see the whole text", yLabel: what, title: `${what} against whole heads` });
  const knee = curve.findIndex((p) => p.knee);
  if (knee >= 0) {
    const [x, y] = placeOf(plot, points[knee], Infinity);
    drawLabels(plot, [{ x, y, text: "knee", weight: 1, strong: true }]);
  }
}

// Lines {name, series, points} with a mark at each point.
function drawLines(id, lines, { ceiling = Infinity, ...options }) {
  const points = lines.flatMap((line) => line.points);
  const plot = frame(byId(id), { height: 320, xs: range(points.map((p) => p.x), 1.2, 1.2), ys: range(points.map((p) => Math.min(p.y, ceiling)), 1.15, 1.15), ...options });
  for (const line of lines) {
    drawLine(plot, line.series, line.points, ceiling);
    drawMarks(plot, line.series, line.points, ceiling);
  }
  return plot;
}

function drawTrainings() {
  const draws = (id, { history }, series, yLabel, title) => {
    const points = history.map(([x, y]) => ({ x, y: number(y), words: `step ${x}: ${short(number(y))}` })).filter(({ y }) => y > 0);
    drawLines(id, [{ series, points }], { xs: [0, Math.max(1, ...points.map((p) => p.x))], xAxis: LINEAR, xLabel: "step", yLabel, title });
  };
  const { fit, tuned } = record;
  byId("trainings").hidden = !fit && !tuned;
  byId("trainings").classList.toggle("single", !fit || !tuned);
  byId("fit-section").hidden = !fit;
  byId("tuned-section").hidden = !tuned;
  if (fit) draws("fit", { history: [[0, mean(errorsOf("before"))], ...fit.history] }, 0, "output error", "error during fitting");
  if (tuned) {
    draws("tuned", tuned, 1, "loss", "loss during training");
    byId("tuned-reading").textContent = `Distance to the teacher on held-out text while training “${tuned.trained}” on ${whole(tuned.tokens)} tokens. The best weights are kept.`;
  }
}

// A dot for each range of positions: the perplexity of its tokens, and the state size after them.
function drawSizes() {
  const rows = values.rows.filter((row) => Object.keys(row.states).length && "perplexity" in row.figures);
  byId("size-section").hidden = !rows.length;
  if (!rows.length) return;
  const lines = rows.map((row) => ({
    name: row.name,
    series: SERIES[row.name],
    points: Object.entries(row.states)
      .map(([name, held]) => ({ name, x: held, y: number(row.figures[name]) }))
      .filter(({ y }) => Number.isFinite(y))
      .map((p) => ({ ...p, words: `${row.name}, ${p.name === "perplexity" ? "all positions" : `positions ${p.name}`}: perplexity ${short(p.y)}, ${bytes(p.x)} per stream after them` })),
  }));
  // A map alone can be worse by orders of magnitude; the chart is cut off there.
  const ceiling = 3 * Math.max(...lines[0].points.map((p) => p.y));
  const plot = drawLines("size", lines, { ceiling, height: 400, xAxis: BYTES, xLabel: "bytes per stream", yLabel: "perplexity", title: "perplexity against bytes" });
  const dots = lines.flatMap(({ name, points }) =>
    points.map((p, at) => {
      const last = at === points.length - 1;
      const [x, y] = placeOf(plot, p, ceiling);
      const told = p.y > ceiling ? `${name} (${short(p.y)})` : name;
      return { x, y, text: last ? told : name === "teacher" ? p.name : "", weight: Number(last), strong: last, optional: !last };
    }),
  );
  drawLabels(plot, dots);
  const stretched = lines.some((line) => line.points.length > 1);
  byId("size-reading").textContent =
    (stretched ? "Each dot is a range of positions: the perplexity of its tokens against the size of the state after them. The last dot of a line carries its name." : `After ${whole(values.length)} tokens.`) +
    " Lower is better, and further left is smaller. The state of softmax grows with every token." +
    (lines.some((line) => line.points.some((p) => p.y > ceiling)) ? " A triangle marks a perplexity above the chart." : "");
}

function drawSpeeds() {
  byId("speeds").hidden = !values.speeds.length;
  if (!values.speeds.length) return;
  const decodes = values.speeds.some((x) => x.decoding !== null);
  const places = [...new Set(values.speeds.map((x) => x.context))];
  const lines = (of, write) =>
    ["teacher", "hybrid"].map((name) => ({
      name,
      series: SERIES[name],
      points: values.speeds.filter((x) => x.name === name).map((x) => ({ x: x.context, y: number(of(x)), words: `${name}, ${whole(x.context)} tokens: ${write(number(of(x)))}` })),
    }));
  const axis = { height: 300, xLabel: "context, tokens", xAxis: { ...LOG, ticks: () => places, format: whole } };
  const speed = (x) => `${short(x)} tokens/s`;
  for (const id of ["decoding", "memory"]) byId(id).hidden = !decodes;
  byId("speeds-title").textContent = decodes ? "Speed and memory against context" : "Speed against length";
  drawLines("prefill", lines((x) => x.prefill, speed), { ...axis, yLabel: "reading, tokens/s", title: "tokens read per second" });
  if (decodes) {
    drawLines("decoding", lines((x) => x.decoding, speed), { ...axis, yLabel: "decoding, tokens/s", title: "tokens decoded per second" });
    drawLines("memory", lines((x) => x.state_bytes, bytes), { ...axis, yLabel: "bytes per stream", yAxis: BYTES, title: "bytes per stream" });
  }
  drawLegend("speeds-legend", lines((x) => x.prefill, speed));
  byId("speeds-reading").textContent = decodes ? "Reading processes a prompt; decoding generates single tokens after it." : "Reading processes a whole text.";
}

// The text, coloured from the first word that differs from the teacher's.
function besideTeacher(text, teacher) {
  let same = 0;
  while (same < text.length && text[same] === teacher[same]) same += 1;
  if (same < text.length) same = text.slice(0, same).search(/\S*$/);
  return [text.slice(0, same), make("span", { class: "own" }, text.slice(same))];
}

function drawTexts() {
  byId("texts-section").hidden = !values.continuations.length;
  byId("texts").append(
    ...values.continuations.flatMap(({ prompt, written }) => [
      make("p", { class: "prompt" }, `… ${prompt.slice(-400)}`),
      make("dl", { class: "written" }, ...Object.entries(written).map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, ...besideTeacher(text.trim(), written.teacher.trim()))))),
    ]),
  );
}

view.draw = () => {
  drawWhole();
  drawHeads();
  drawTrainings();
  drawSizes();
  drawSpeeds();
};

readAddress();
drawHeader();
drawRows();
drawTexts();
show();
