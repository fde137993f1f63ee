// The page as a whole: header, controls, and redrawing what a choice touches.

function drawHeader() {
  const data = comparison.data;
  byId("source").textContent = data.source;
  byId("verdict").textContent = comparison.verdict;
  const facts = [
    ["tokens n", whole(data.n)],
    ["width d", whole(data.d)],
    ["heads", `${LAYERS.length} ${LAYERS.length === 1 ? "layer" : "layers"} × ${HEADS.length}${data.kv_heads === HEADS.length ? "" : ` on ${data.kv_heads} key heads`}`],
    ["attention", CAUSAL ? "causal" : "full"],
    ["softmax scale", short(data.scale)],
    ["stored as", data.dtype],
    ["maps", String(maps.length)],
  ];
  byId("facts").append(...facts.map(([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, String(text)))));
  byId("notes").append(...(data.notes || []).map((note) => make("li", {}, note)));
  byId("limit-kind").textContent = ESTIMATED ? ", here an estimate" : "";
  byId("colophon").textContent = `Made by kerneltrick ${comparison.version}, seed ${data.seed}. Times are measured on the machine that made this file; the weights are computed here, from the queries and keys inside it.`;
}

function fillSelect(id, items) {
  items.forEach((text, at) => byId(id).append(make("option", { value: at }, String(text))));
  byId(id).addEventListener("change", () => select({ [id]: Number(byId(id).value) }));
}

function buildMosaic() {
  const mosaic = byId("mosaic");
  mosaic.style.setProperty("--columns", HEADS.length);
  const corner = make("span", { class: "mosaic-label", "aria-hidden": "true" }, "");
  mosaic.append(corner, ...HEADS.map((head) => make("span", { class: "mosaic-label top", "aria-hidden": "true" }, String(head))));
  LAYERS.forEach((layer, l) => {
    mosaic.append(make("span", { class: "mosaic-label", "aria-hidden": "true" }, `layer ${layer}`));
    HEADS.forEach((_, h) => {
      const cell = make("button", { type: "button", class: "cell", "data-layer": l, "data-head": h });
      cell.addEventListener("click", () => select({ layer: l, head: h }));
      mosaic.append(cell);
    });
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
  const { weight } = palette();
  byId("mosaic-title").textContent = `Output error of ${labels[state.map]}, every head`;
  for (const cell of byId("mosaic").querySelectorAll(".cell")) {
    const [l, h] = [Number(cell.dataset.layer), Number(cell.dataset.head)];
    const metrics = maps[state.map].heads[l][h];
    const error = metrics ? number(metrics.output_error) : NaN;
    const chosen = l === state.layer && h === state.head;
    cell.style.backgroundColor = Number.isNaN(error) ? "" : colourOf(weight, 0.04 + 0.86 * Math.min(1, error));
    cell.classList.toggle("missing", Number.isNaN(error));
    cell.setAttribute("aria-pressed", String(chosen));
    cell.tabIndex = chosen ? 0 : -1;
    const words = `layer ${LAYERS[l]}, head ${HEADS[h]}: output error ${short(error)}`;
    cell.setAttribute("aria-label", words);
    cell.title = words;
  }
}

function drawStats() {
  const metrics = maps[state.map].heads[state.layer][state.head] || {};
  const own = comparison.softmax.heads[state.layer][state.head] || {};
  const stats = [
    ["output_error", "output error", short(number(metrics.output_error))],
    ["top1_agreement", "top-1 agreement", percent(number(metrics.top1_agreement))],
    ["mse", "MSE of the weights", short(number(metrics.mse))],
    ["times_limit", metrics.limit_kind === "estimate" ? "× limit (estimate)" : "× limit", times(number(metrics.times_limit))],
    ["entropy", "entropy, map / softmax", `${short(number(metrics.entropy), 2)} / ${short(number(own.entropy), 2)}`],
    ["condition_number", "condition number", short(number(metrics.condition_number))],
  ];
  byId("stats-title").textContent = `Layer ${LAYERS[state.layer]}, head ${HEADS[state.head]} with ${labels[state.map]}`;
  byId("stats").replaceChildren(
    ...stats.map(([key, term, text]) => make("div", { "data-key": key }, make("dt", {}, term), make("dd", {}, text))),
  );
}

function drawControls() {
  for (const id of ["map", "layer", "head"]) byId(id).value = String(state[id]);
  const names = { auto: "Auto", light: "Light", dark: "Dark" };
  byId("theme-name").textContent = names[state.theme];
  byId("theme").setAttribute("aria-label", `Colours: ${state.theme === "auto" ? "as the system" : state.theme}`);
  document.documentElement.dataset.theme = printing ? "light" : state.theme;
}

// One step along all heads of all layers.
function step(by) {
  const count = LAYERS.length * HEADS.length;
  const at = (state.layer * HEADS.length + state.head + by + count) % count;
  select({ layer: Math.floor(at / HEADS.length), head: at % HEADS.length });
}

function select(change) {
  Object.assign(state, change);
  drawControls();
  drawMosaic();
  drawStats();
  updateAttention();
  if ("map" in change) {
    drawPareto();
    drawMapsTable();
  }
  drawHeadsTable();
  writeAddress();
}

function drawAll() {
  drawControls();
  drawMosaic();
  drawStats();
  updateAttention();
  drawPareto();
  drawCurves();
  drawTiming();
  drawWindows();
  drawMapsTable();
  drawHeadsTable();
}

function redrawColours() {
  drawControls();
  drawMosaic();
  drawAttention();
  writeAddress();
}

function start() {
  // A view worth a first look: the best map of all, in a head that it serves neither well nor badly.
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
  buildPanels();
  buildMosaic();
  segmented(byId("colour-scale"), [["linear", "linear"], ["root", "√"], ["log", "log"]], state.scale, (scale) => {
    state.scale = scale;
    redrawColours();
  });
  const toggle = (id, name, options, redraw) =>
    segmented(byId(id), options, state[name], (value) => {
      state[name] = value;
      redraw();
      writeAddress();
    });
  toggle("pareto-x", "cost", [["time", "time"], ["memory", "memory"]], drawPareto);
  toggle("pareto-y", "error", [["output", "output"], ["mse", "weights"]], drawPareto);
  toggle("curves-y", "curve", [["output", "output"], ["mse", "weights"]], drawCurves);
  byId("previous-head").addEventListener("click", () => step(-1));
  byId("next-head").addEventListener("click", () => step(1));
  byId("theme").addEventListener("click", () => {
    state.theme = CHOICES.theme[(CHOICES.theme.indexOf(state.theme) + 1) % 3];
    redrawColours();
  });
  wantsDark.addEventListener("change", redrawColours);
  addEventListener("hashchange", () => {
    readAddress();
    drawAll();
  });
  addEventListener("beforeprint", () => {
    printing = true;
    drawAll();
  });
  addEventListener("afterprint", () => {
    printing = false;
    drawAll();
  });
  drawAll();
  let width = byId("pareto").clientWidth;
  new ResizeObserver(() => {
    if (byId("pareto").clientWidth === width) return;
    width = byId("pareto").clientWidth;
    drawAttention();
    drawPareto();
    drawCurves();
    drawTiming();
    drawWindows();
  }).observe(byId("pareto"));
}

start();
window.kerneltrick = { comparison, state, labels, weights };
