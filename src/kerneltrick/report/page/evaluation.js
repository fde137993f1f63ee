// A linearised model: its figures, how it was made, how fast it is and what it writes.

const record = values.record || {};
const SERIES = { teacher: "soft", hybrid: 0, "window alone": 1, "map alone": 2 };

function drawHeader() {
  byId("source").textContent = values.source;
  byId("verdict").textContent = values.verdict;
  const facts = [["windows", whole(values.windows)], ["tokens of each", whole(values.length)]];
  if (record.fit) facts.push(["steps of the fit", whole(record.fit.steps)]);
  if (record.tuned) facts.push(["trained end to end", record.tuned.trained], ["on tokens", whole(record.tuned.tokens)]);
  byId("facts").append(...facts.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, String(text)))));
  if (record.window) byId("notes").append(make("li", {}, `Window: ${record.window}.`));
  byId("colophon").textContent = `Made by kerneltrick ${values.version}. Times are measured on the machine that made this file.`;
}

function drawRows() {
  const names = Object.keys(values.rows[0].figures);
  const write = (name, x) => (/agreement|recall|nearest/.test(name) ? percent(x) : short(x, 4));
  const head = make("tr", {}, make("th", { scope: "col" }, ""), ...names.map((name) => make("th", { scope: "col" }, name)), make("th", { scope: "col" }, "state"));
  const body = values.rows.map((row) =>
    make("tr", {}, make("th", { scope: "row" }, row.name), ...names.map((name) => make("td", {}, write(name, number(row.figures[name])))), make("td", {}, bytes(number(row.state_bytes)))),
  );
  byId("rows").append(make("thead", {}, head), make("tbody", {}, ...body));
}

function drawHeads() {
  byId("heads-section").hidden = !record.fit;
  if (!record.fit) return;
  const dark = wantsDark.matches && !printing;
  const { weight } = RAMPS[dark ? "dark" : "light"];
  const kept = Object.entries(record.kept || {});
  for (const name of ["before", "after"]) {
    const layers = Object.entries(record.fit[name]);
    const all = layers.flatMap(([, errors]) => errors.map(number));
    byId(`${name}-title`).textContent = `${name} the fit: mean ${short(all.reduce((a, b) => a + b, 0) / all.length)}`;
    const mosaic = byId(name);
    mosaic.style.setProperty("--columns", layers[0][1].length);
    mosaic.replaceChildren(make("span", {}), ...layers[0][1].map((_, head) => make("span", { class: "mosaic-label top", "aria-hidden": "true" }, String(head))));
    for (const [layer, errors] of layers) {
      mosaic.append(make("span", { class: "mosaic-label", "aria-hidden": "true" }, `layer ${layer}`));
      errors.forEach((error, head) => {
        const words = `layer ${layer}, head ${head}: output error ${short(number(error))}`;
        const cell = make("span", { class: "cell", role: "img", title: words, "aria-label": words });
        cell.style.backgroundColor = colourOf(weight, 0.04 + 0.86 * Math.min(1, number(error)));
        mosaic.append(cell);
      });
    }
  }
  byId("kept").textContent = kept.map(([layer, why]) => `Layer ${layer} keeps softmax: ${why}.`).join(" ");
}

// Lines of points [x, y] on two logarithmic axes, with their names.
function drawLines(id, lines, options) {
  const points = lines.flatMap((line) => line.points);
  const plot = frame(byId(id), {
    height: 320,
    xs: range(points.map(([x]) => x), 1.2, 1.2),
    ys: range(points.map(([, y]) => y), 1.3, 1.3),
    ...options,
  });
  for (const { name, series, points } of lines) {
    plot.svg.append(draw("path", { class: `line s${series}`, d: path(points.map(([x, y]) => [plot.x(x), plot.y(y)])) }));
    for (const [x, y] of points) {
      plot.svg.append(draw("circle", { class: `point s${series}`, cx: plot.x(x), cy: plot.y(y), r: 4 }, draw("title", {}, `${name}, ${short(x)}: ${short(y)}`)));
    }
  }
  const legend = byId(`${id}-legend`);
  if (legend) legend.replaceChildren(...lines.map(({ name, series }) => make("span", {}, swatch(series), name)));
  return plot;
}

function drawTraining() {
  const history = (of) => of.history.map(([step, loss]) => [Math.max(1, step), number(loss)]).filter(([, loss]) => loss > 0);
  byId("fit-section").hidden = !record.fit || !record.fit.history.length;
  byId("tuned-section").hidden = !record.tuned;
  byId("fit-section").parentElement.classList.toggle("single", byId("fit-section").hidden !== byId("tuned-section").hidden);
  if (!byId("fit-section").hidden) {
    drawLines("fit", [{ name: "held-out error", series: 0, points: history(record.fit) }], { xLabel: "step", yLabel: "output error", title: "error while the maps were fitted" });
  }
  if (record.tuned) {
    drawLines("tuned", [{ name: "held-out loss", series: 1, points: history(record.tuned) }], { xLabel: "step", yLabel: "loss", title: "loss while it was trained" });
    byId("tuned-reading").textContent = `Distance from the teacher on held-out text, while “${record.tuned.trained}” were trained on ${whole(record.tuned.tokens)} tokens; the best weights are kept.`;
  }
}

function drawSizes() {
  const rows = values.rows.filter((row) => number(row.state_bytes) > 0);
  byId("size-section").hidden = !rows.length;
  if (!rows.length) return;
  const lines = rows.map((row) => ({ name: row.name, series: SERIES[row.name], points: [[number(row.state_bytes), number(row.figures.perplexity)]] }));
  const plot = drawLines("size", lines, { xLabel: "bytes that a stream holds", yLabel: "perplexity", xFormat: bytes, title: "perplexity against bytes", right: 90 });
  const dots = lines.map(({ name, points: [[x, y]] }) => ({ x: plot.x(x), y: plot.y(y), text: name }));
  placeLabels(plot, dots, [], widthOf).forEach((box, at) => plot.svg.append(draw("text", { x: box.x, y: box.y + 12 }, dots[at].text)));
  byId("size-reading").textContent = `After ${whole(values.length)} tokens. Lower is better, further left is smaller; the state of softmax grows with every token.`;
}

function drawSpeeds() {
  byId("speeds").hidden = !values.speeds.length;
  if (!values.speeds.length) return;
  const decodes = values.speeds.some((x) => x.decoding !== null);
  const lines = (of) =>
    ["teacher", "hybrid"].map((name) => ({
      name,
      series: SERIES[name],
      points: values.speeds.filter((x) => x.name === name).map((x) => [x.context, number(of(x))]),
    }));
  const axis = { xLabel: "context, tokens", xTicks: [...new Set(values.speeds.map((x) => x.context))] };
  byId("decoding-title").textContent = decodes ? "Decoding against context" : "Reading against length";
  drawLines("decoding", lines((x) => (decodes ? x.decoding : x.prefill)), { ...axis, yLabel: "tokens a second", title: "tokens a second" });
  byId("memory-section").hidden = !decodes;
  byId("speeds").classList.toggle("single", !decodes);
  if (decodes) drawLines("memory", lines((x) => x.state_bytes), { ...axis, yLabel: "bytes of a stream", yFormat: bytes, title: "memory" });
}

function drawTexts() {
  byId("texts-section").hidden = !values.continuations.length;
  byId("texts").append(
    ...values.continuations.map(({ prompt, written }) =>
      make("div", {}, make("p", { class: "reading" }, `… ${prompt.slice(-400)}`),
        make("dl", { class: "facts written" }, ...Object.entries(written).map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))))),
    ),
  );
}

function drawCharts() {
  drawHeads();
  drawTraining();
  drawSizes();
  drawSpeeds();
}

drawHeader();
drawRows();
drawTexts();
drawCharts();
wantsDark.addEventListener("change", drawCharts);
for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    printing = on;
    drawCharts();
  });
}
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  drawCharts();
}).observe(document.body);
