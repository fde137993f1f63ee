// Chapter 3: a window and sinks with exact weights, and a map for the rest.

const dial = {
  n: values.dial.tokens,
  d: values.dial.width,
  sources: values.dial.sources.map((source) => ({ ...source, arrays: null })),
  maps: values.dial.maps.map((entry) => ({ ...entry, projection: entry.projection ? float64(entry.projection) : null })),
  known: {}, // what does not depend on the window: scores, softmax, outputs, similarities
  error: NaN,
};

function buildDial() {
  const dials = byId("dial-dials");
  const changed = () => {
    repaint(drawDial);
    later(drawWindows);
  };
  const heads = dial.sources.flatMap(({ name, layers, heads: count }, s) =>
    Array.from({ length: layers.length * count }, (_, at) => {
      const place = layers.length * count > 1 ? `layer ${layers[Math.floor(at / count)]}, head ${at % count}` : "synthetic";
      return [`${s}.${at}`, `${name}, ${place}`];
    }),
  );
  menu(dials, "head", { label: "queries, keys and values", options: heads, value: "0.4", changed });
  menu(dials, "far", { label: "map for far tokens", options: dial.maps.map(({ map }) => [map, map === "softmax" ? "none: the window alone" : map]), changed });
  slider(dials, "window", { label: "window", min: 0, max: dial.n, value: 8, format: (w) => `${w} ${w === 1 ? "token" : "tokens"}`, changed: () => repaint(drawDial) });
  slider(dials, "sinks", { label: "sinks", min: 0, max: 8, value: 1, changed });
  ask("dial", DIAL_QUESTIONS);
}

function dialHead(text = state.head) {
  const [s, at] = text.split(".").map(Number);
  const source = dial.sources[s];
  source.arrays ||= { q: float16(source.q), k: float16(source.k), v: float16(source.v) };
  const size = dial.n * dial.d;
  const part = (x) => x.subarray(at * size, (at + 1) * size);
  return { q: part(source.arrays.q), k: part(source.arrays.k), v: part(source.arrays.v), n: dial.n, d: dial.d, causal: true, scale: 1 / Math.sqrt(dial.d) };
}

// Kept while only the window moves, so that a frame has little to compute.
function prepared(text, far) {
  if (dial.known.text !== text) {
    const head = dialHead(text);
    const scores = scoresOf(head);
    const softmax = softmaxWeights(head, scores);
    dial.known = { text, head, scores, softmax, top: strong(softmax), truth: outputsOf(softmax, head.v, dial.n, dial.d), similar: {} };
  }
  dial.known.similar[far] ||= similarities(dial.known.head, dial.maps.find(({ map }) => map === far));
  return dial.known;
}

// Weights and output error at a window; no window and no sinks make the map alone, and `softmax` alone.
function dialAt(text, far, window, sinks) {
  const { head, scores, truth, similar } = prepared(text, far);
  const setting = { ...dial.maps.find(({ map }) => map === far), window, sinks };
  const weights = mapWeights(head, setting, similar[far], scores);
  return { setting, weights, error: relativeError(outputsOf(weights, head.v, dial.n, dial.d), truth) };
}

function drawDial() {
  const { softmax, top } = prepared(state.head, state.far);
  const { setting, weights, error } = dialAt(state.head, state.far, state.window, state.sinks);
  dial.error = error;
  const look = { top, triangle: true };
  paint(byId("dial-softmax"), softmax, dial.n, dial.n, look);
  paint(byId("dial-weights"), weights, dial.n, dial.n, look);
  paint(byId("dial-difference"), weights.map((x, at) => x - softmax[at]), dial.n, dial.n, { ...look, kind: "signed" });
  const everything = state.far === "softmax" && !state.window && !state.sinks;
  const sizes = { n: dial.n, d: dial.d, width: dial.d };
  const whole = countDial({ ...sizes, features: 0, products: 0, window: dial.n, sinks: 0 });
  const cost = everything ? whole : countDial({ ...sizes, ...setting });
  tell("dial-told", [
    ["output error", Number.isNaN(error) ? "some rows have no weights" : percent(error), "error"],
    ["state, float32", bytes(cost.bytes), "bytes"],
    ["multiplications", `${short(cost.products / whole.products)}× softmax`, "products"],
    ["numbers per far token", everything ? "–" : String(setting.features), "features"],
  ]);
  moveMarker();
}

let windowsPlot = null;
const WINDOW_LENGTHS = [0, 1, 2, 4, 8, 16, 32, 64, 128];
const besideZero = (w) => Math.max(0.5, w); // a logarithm has no 0

function drawWindows() {
  const curve = (far) =>
    WINDOW_LENGTHS.filter((w) => far !== "softmax" || w + state.sinks > 0)
      .map((w) => ({ x: besideZero(w), y: Math.max(1e-3, dialAt(state.head, far, w, state.sinks).error), words: `window ${w}` }))
      .filter(({ y }) => Number.isFinite(y));
  const lines = [["softmax", "soft"], ...(state.far === "softmax" ? [] : [[state.far, 0]])].map(([far, series]) => [curve(far), series]);
  const ceiling = 2;
  windowsPlot = frame(byId("dial-chart"), {
    height: 280,
    xs: [0.45, 150],
    ys: [1e-3, 2.2],
    xLabel: "window (left end: 0)",
    yLabel: "output error, 0.001 or less at the bottom",
    xAxis: { ...LOG, ticks: () => [1, 2, 4, 8, 16, 32, 64, 128] },
    title: "output error against the window",
  });
  for (const [points, series] of lines) {
    drawLine(windowsPlot, series, points, ceiling);
    drawMarks(windowsPlot, series, points, ceiling);
  }
  drawLegend("dial-legend", [{ name: "the window alone", series: "soft" }, ...(state.far === "softmax" ? [] : [{ name: state.far, series: 0 }])]);
  moveMarker();
}

function moveMarker() {
  if (!windowsPlot) return;
  const { svg, x, top, bottom } = windowsPlot;
  svg.querySelector(".here")?.remove();
  const place = x(besideZero(state.window));
  svg.append(draw("line", { class: "here", x1: place, x2: place, y1: top, y2: bottom }));
}

// The smallest window whose output error is below a limit.
function smallestWindow(limit) {
  for (let w = 0; w <= dial.n; w += 1) if (dialAt(state.head, state.far, w, state.sinks).error < limit) return w;
  return dial.n;
}

const DIAL_QUESTIONS = [
  {
    words: "From which window on is the result softmax attention, whatever the map? (The text has 128 tokens.)",
    answer: () => dial.n,
    near: 0,
    why: "The window counts the token itself, so 128 tokens cover every j ≤ i, and nothing is left to the map.",
    hint: "Move the window until the difference is empty and the error is 0 on every head.",
  },
  {
    words: "With the head, map and sinks chosen above: which is the smallest window with an output error below 10 %?",
    answer: () => smallestWindow(0.1),
    near: 0,
    why: "Now choose “none: the window alone”: if the same window is enough, the map adds nothing.",
    hint: "Move the window by the arrow keys until “output error” just falls below 10 %.",
  },
  {
    words: "The text becomes 10 times as long and the window stays. What happens to the state?",
    options: ["it stays the same", "it becomes 10 times as large", "it becomes 100 times as large"],
    right: 0,
    why: "The state is the map's sums, the last w − 1 tokens and the sinks. n is not in it.",
    hint: "The state holds the map's sums, the tokens in the window and the sinks. Which of these know n?",
  },
];
