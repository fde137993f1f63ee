// The whole page: header, controls, and redrawing what a choice affects.

function drawHeader() {
  const data = comparison.data;
  fillHeader({
    source: data.source,
    told: comparison.headline || comparison.verdict,
    findings: comparison.findings || [],
    notes: data.notes || [],
    facts: [
      ["tokens n", whole(data.n)],
      ["width d", whole(data.d)],
      ["heads", `${LAYERS.length} ${LAYERS.length === 1 ? "layer" : "layers"} × ${HEADS.length}${data.kv_heads === HEADS.length ? "" : ` on ${data.kv_heads} key heads`}`],
      ["attention", CAUSAL ? "causal" : "full"],
      ["softmax scale", short(data.scale)],
      ["dtype", data.dtype],
      ["maps", maps.length],
    ],
    colophon: `Seed ${data.seed}. Times were measured on the machine that made this file. Your browser computes the weights from the queries and keys in this file.`,
  });
  byId("limit-kind").textContent = ESTIMATED ? " (here an estimate)" : "";
}

function fillSelect(id, items) {
  items.forEach((text, at) => byId(id).append(make("option", { value: at }, String(text))));
  byId(id).addEventListener("change", () => select({ [id]: Number(byId(id).value) }));
}

function buildMosaic() {
  const mosaic = byId("mosaic");
  layMosaic(mosaic, LAYERS, HEADS, (l, h) => {
    const cell = make("button", { type: "button", class: "cell", "data-layer": l, "data-head": h });
    cell.addEventListener("click", () => select({ layer: l, head: h }));
    return cell;
  });
  mosaic.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [dl, dh] = moves[event.key];
    const inside = (x, size) => Math.min(size - 1, Math.max(0, x));
    select({ layer: inside(state.layer + dl, LAYERS.length), head: inside(state.head + dh, HEADS.length) });
    mosaic.querySelector("[aria-pressed=true]").focus();
  });
}

function drawMosaic() {
  byId("mosaic-title").textContent = `Output error of ${labels[state.map]} in each head`;
  for (const cell of byId("mosaic").querySelectorAll(".cell")) {
    const [l, h] = [Number(cell.dataset.layer), Number(cell.dataset.head)];
    const metrics = maps[state.map].heads[l][h];
    const chosen = l === state.layer && h === state.head;
    paintCell(cell, LAYERS[l], HEADS[h], metrics ? number(metrics.output_error) : NaN);
    cell.setAttribute("aria-pressed", String(chosen));
    cell.tabIndex = chosen ? 0 : -1;
  }
}

function drawStats() {
  const metrics = maps[state.map].heads[state.layer][state.head] || {};
  const own = comparison.softmax.heads[state.layer][state.head] || {};
  const stats = [
    ["output_error", metricNamed("output_error").title, short(number(metrics.output_error))],
    ["top1_agreement", metricNamed("top1_agreement").title, percent(number(metrics.top1_agreement))],
    ["mse", metricNamed("mse").title, short(number(metrics.mse))],
    ["times_limit", metrics.limit_kind === "estimate" ? "× limit (estimate)" : "× limit", times(number(metrics.times_limit))],
    ["entropy", "entropy, map / softmax", `${short(number(metrics.entropy), 2)} / ${short(number(own.entropy), 2)}`],
    ["condition_number", metricNamed("condition_number").title, short(number(metrics.condition_number))],
  ];
  byId("stats-title").textContent = `Layer ${LAYERS[state.layer]}, head ${HEADS[state.head]} with ${labels[state.map]}`;
  byId("stats").replaceChildren(
    ...stats.map(([key, name, text]) => term(name, text, { "data-key": key })),
  );
}

function drawControls() {
  for (const id of ["map", "layer", "head"]) byId(id).value = String(state[id]);
}

// Move one step through all heads of all layers.
function step(by) {
  const count = LAYERS.length * HEADS.length;
  const at = (state.layer * HEADS.length + state.head + by + count) % count;
  select({ layer: Math.floor(at / HEADS.length), head: at % HEADS.length });
}

function select(change) {
  Object.assign(state, change);
  drawHead();
  if ("map" in change) {
    drawPareto();
    drawMapsTable();
  }
  writeAddress();
}

// Redraw everything that shows the chosen head.
function drawHead() {
  drawControls();
  drawMosaic();
  drawStats();
  updateAttention();
  drawHeadsTable();
}

view.draw = () => {
  drawHead();
  drawPareto();
  drawCurves();
  drawTiming();
  drawWindows();
  drawMapsTable();
};

function start() {
  // Start with the best map, in the head with its median error.
  const errors = maps.map((map) => number(map.summary.output_error));
  const ranked = errors.map((error, at) => [Number.isNaN(error) ? Infinity : error, at]).sort((a, b) => a[0] - b[0]);
  state.map = ranked[0][1];
  const heads = maps[state.map].heads
    .flatMap((row, layer) => row.map((metrics, head) => ({ layer, head, error: metrics ? number(metrics.output_error) : NaN })))
    .filter((place) => !Number.isNaN(place.error))
    .sort((a, b) => a.error - b.error);
  if (heads.length) Object.assign(state, { layer: heads[heads.length >> 1].layer, head: heads[heads.length >> 1].head });
  state.i = Math.floor(N / 2);
  state.j = Math.floor(N / 4);
  readAddress();
  drawHeader();
  fillSelect("map", maps.map((map) => map.map));
  fillSelect("layer", LAYERS);
  fillSelect("head", HEADS);
  hideMissing();
  buildPanels();
  buildMosaic();
  segmented("colour-scale", "scale", ["linear", "√", "log"], drawAttention);
  segmented("pareto-x", "cost", CHOICES.cost, drawPareto);
  segmented("pareto-y", "error", ["output", "weights"], drawPareto);
  segmented("curves-y", "curve", ["output", "weights"], drawCurves);
  byId("previous-head").addEventListener("click", () => step(-1));
  byId("next-head").addEventListener("click", () => step(1));
  show();
}

start();
window.kerneltrick = { comparison, state, labels, weights };
