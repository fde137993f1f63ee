// The heads of a model: a mosaic, their weights, reach against depth, and what memory each layer is.

const measureOf = (name) => measures.find((each) => each.name === name);
const LOGARITHMIC = ["reach", "reach_most", "half_life", "rank"];

// From a value to a place on the ramp: shares as they are, counts by their logarithm.
function placeOn(name, x) {
  if (Number.isNaN(x)) return NaN;
  if (measureOf(name).style === "percent") return x;
  const finite = every.map(({ head }) => valueOf(head, name)).filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (x === Infinity) return 1;
  if (!(high > low)) return 0.5;
  const at = LOGARITHMIC.includes(name) && low > 0 ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low);
  return 0.06 + 0.88 * at;
}

const written = (name, x) => WRITE[measureOf(name).style](x);

function drawMosaic() {
  const { name, title, meaning } = measureOf(state.measure);
  layMosaic(byId("mosaic"), layers.map((_, l) => l), Array.from({ length: HEADS }, (_, h) => h), (l, h) => {
    const head = layers[l].heads[h];
    if (!head) return make("span", { "aria-hidden": "true" });
    const x = valueOf(head, name);
    const words = `${headName(l, h)}, ${head.memory}: ${title} ${written(name, x)}`;
    const chosen = l === state.layer && h === state.head;
    const cell = make("button", { type: "button", class: "cell", title: words, "aria-label": words, "aria-pressed": String(chosen), "data-cell": `${l} ${h}` });
    const place = placeOn(name, x);
    cell.classList.toggle("missing", Number.isNaN(place));
    cell.style.backgroundColor = Number.isNaN(place) ? "" : colourOf(palette().weight, place);
    cell.addEventListener("click", () => focusCell(l, h));
    cell.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      focusCell(l + moves[event.key][0], h + moves[event.key][1]);
    });
    return cell;
  });
  byId("mosaic-reading").textContent = `${meaning} A stronger colour is a larger value; striped heads have none.`;
}

function focusCell(l, h) {
  choose(l, h);
  document.querySelector(`[data-cell="${state.layer} ${state.head}"]`).focus();
}

function drawHead() {
  const head = layers[state.layer].heads[state.head];
  byId("head-title").textContent = `${headName(state.layer, state.head)}: ${head.memory}`.replace(/^l/, "L");
  byId("head-stats").replaceChildren(
    ...measures.map(({ name, title, meaning }) => term(title, written(name, valueOf(head, name)), { title: meaning })),
  );
}

const whichOperator = (layer) => OPERATORS.indexOf(layer.operator);

function drawReach() {
  const most = every.map(({ head }) => Math.max(1, valueOf(head, "reach_most")));
  const last = layers.length - 1;
  const plot = frame(byId("reach"), {
    height: 400,
    xs: [-0.5, last + 0.5],
    ys: range([1, ...most], 1.2, 1.4),
    xLabel: "layer",
    yLabel: "tokens that hold 90 % of the weight",
    xAxis: { ...LINEAR, ticks: (_, room) => layers.map((__, l) => l).filter((l) => l % Math.ceil(layers.length / room) === 0), format: String },
    title: "reach against depth",
  });
  const means = layers.map((layer, l) => ({ x: l, y: layer.heads.reduce((sum, head) => sum + Math.max(1, valueOf(head, "reach_most")), 0) / layer.heads.length }));
  drawLine(plot, "soft", means, Infinity, " thin pale");
  every.forEach(({ layer, head, l, h }, at) => {
    const chosen = l === state.layer && h === state.head;
    const spread = layer.heads.length > 1 ? 0.5 * (h / (layer.heads.length - 1) - 0.5) : 0;
    const [x, y] = [plot.x(l + spread), plot.y(most[at])];
    const words = `${headName(l, h)}, ${layer.operator}: ${whole(most[at])} tokens`;
    const dot = draw("g", { class: `dot${chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "aria-label": words, "aria-pressed": String(chosen), "data-dot": `${l} ${h}` },
      draw("title", {}, words),
      draw("circle", { class: "target", cx: x, cy: y, r: 11 }),
      draw("circle", { class: `point ${seriesClass(whichOperator(layer))}`, cx: x, cy: y, r: chosen ? 7 : 4.5 }));
    const pick = () => {
      choose(l, h);
      byId("reach").querySelector(`[data-dot="${l} ${h}"]`).focus();
    };
    dot.addEventListener("click", pick);
    dot.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick();
    });
    plot.svg.append(dot);
  });
  drawLegend("reach-legend", OPERATORS.map((name, series) => ({ name, series })));
}

function drawLayers() {
  byId("layers").replaceChildren(
    ...layers.map((layer, l) => {
      const button = make("button", { type: "button" }, `Layer ${l}: ${layer.operator}`, make("span", { class: "where" }, layer.name), make("span", { class: `badge ${seriesClass(KINDS.indexOf(layer.memory))}` }, layer.memory));
      button.addEventListener("click", () => choose(l, 0));
      return make("li", { "aria-current": l === state.layer ? "true" : null }, button, make("p", {}, layer.told));
    }),
  );
}

const COLUMNS = [
  { key: "head", label: "head", text: ({ l, h }) => headName(l, h), of: ({ l, h }) => l * 1000 + h },
  ...measures.map(({ name, label, meaning }) => ({ key: name, label, help: meaning, of: ({ head }) => valueOf(head, name), write: (x) => written(name, x) })),
  { key: "memory", label: "memory", of: ({ head }) => -KINDS.indexOf(head.memory), write: (x) => KINDS[-x] },
];

view.draw = () => {
  drawMosaic();
  drawHead();
  drawPicture();
  drawReach();
  drawLayers();
  drawTable("measures", COLUMNS, every, ({ l, h }) => l === state.layer && h === state.head, ({ l, h }) => choose(l, h));
};

function drawHeader() {
  const counts = KINDS.map((kind) => [kind, layers.filter((layer) => layer.memory === kind).length]).filter(([, count]) => count);
  const names = (kind) => layers.map((layer, l) => (layer.memory === kind ? l : null)).filter((l) => l !== null).join(", ");
  fillHeader({
    source: values.source,
    told: `Of ${layers.length} layers, ${counts.map(([kind, count]) => `${count} ${count === 1 ? "is" : "are"} ${kind} memory`).join(", ")}.`,
    findings: counts.map(([kind]) => `${kind}: layer${names(kind).includes(",") ? "s" : ""} ${names(kind)}`),
    facts: [
      ["layers", whole(layers.length)],
      ["heads", whole(every.length)],
      ["tokens of the text", whole(COUNT)],
      ["queries shown", whole(rows.length)],
      ["operators", OPERATORS.join("; ")],
    ],
    notes: values.notes,
    colophon: "Weights are exact: times the values they are the output of the heads.",
  });
}

byId("measure").append(...measures.map(({ name, title }) => make("option", { value: name }, title)));
byId("measure").addEventListener("change", (event) => {
  state.measure = event.target.value;
  drawMosaic();
  writeAddress();
});
buildPicture();
readAddress();
byId("measure").value = state.measure;
drawHeader();
segmented("scale", "scale", ["root", "linear", "log"], drawPicture);
show();
