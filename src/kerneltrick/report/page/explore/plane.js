// Chapter 2: queries and keys in the plane, and what a map makes of them.

const PLANE_MAPS = values.plane.maps;
const MOST_POINTS = 128;
const plane = {
  q: new Float64Array(0),
  k: new Float64Array(0),
  draws: values.plane.draws.map(float64),
  learned: values.plane.learned.map(float64),
  chosen: { side: "q", at: 0 },
  shown: null,
  estimated: "", // what the estimates of favor were drawn for
};
const REACH = 3; // the picture shows −3 … 3
const within = (x) => Math.max(-REACH, Math.min(REACH, x));
const everyPoint = {}; // by side, as many as the slider offers, of which the first are shown

function scatter() {
  const points = normals(4 * MOST_POINTS, 11).map(within);
  everyPoint.q = points.slice(0, 2 * MOST_POINTS);
  everyPoint.k = points.slice(2 * MOST_POINTS);
}

// Points that were moved stay when the number of tokens changes, and when the page is loaded again.
function showPoints(n) {
  for (const side of ["q", "k"]) plane[side] = everyPoint[side].subarray(0, 2 * n);
  if (plane.chosen.at >= n) plane.chosen = { side: "q", at: 0 };
}

const keepPoints = () => store({ points: { q: [...everyPoint.q], k: [...everyPoint.k] } });

function restorePoints() {
  scatter();
  const { points = {} } = readStored();
  for (const side of ["q", "k"]) {
    if (points[side]?.length === everyPoint[side].length && points[side].every(Number.isFinite)) everyPoint[side].set(points[side].map(within));
  }
}

function buildPlane() {
  restorePoints();
  const dials = byId("map-dials");
  const names = PLANE_MAPS.map((entry) => [entry.name, entry.name]);
  menu(dials, "map", { label: "feature map", options: names, value: "elu", changed: changeMap });
  slider(dials, "points", { label: "tokens", min: 2, max: MOST_POINTS, value: 8, changed: () => repaint(drawPlane) });
  for (const entry of PLANE_MAPS) {
    for (const control of entry.controls) addParameter(entry, control);
  }
  const canvas = byId("plane");
  let dragging = false;
  // A finger that starts on a point moves it; one that starts beside all points scrolls the page.
  canvas.addEventListener("touchstart", (event) => {
    if (event.touches.length === 1 && nearest(canvas, event.touches[0]).held) event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    const { side, at, held } = nearest(canvas, event);
    dragging = held;
    if (!held) return;
    plane.chosen = { side, at };
    canvas.setPointerCapture(event.pointerId);
    dragTo(canvas, event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragging) dragTo(canvas, event);
  });
  canvas.addEventListener("lostpointercapture", () => {
    if (dragging) keepPoints();
    dragging = false;
  });
  canvas.addEventListener("keydown", moveChosen);
  press(byId("plane-buttons"), "Start again", () => {
    scatter();
    plane.chosen = { side: "q", at: 0 };
    keepPoints();
    repaint(drawPlane);
  });
  slider(byId("favor-dials"), "redraws", { label: "draws averaged", min: 1, max: plane.draws.length, value: 10, changed: () => repaint(drawFavor) });
  player(byId("favor-dials"), "redraws", { seconds: 4, changed: () => repaint(drawFavor) });
  drawLegend("favor-legend", [{ name: "one draw", series: "soft" }, { name: "mean of the draws so far", series: 1 }]);
  ask("map", MAP_QUESTIONS);
}

// A control for a parameter of a map, named map.parameter; hidden while another map is chosen.
function addParameter(entry, { name, value, offered }) {
  const own = `${entry.name}.${name}`;
  const host = make("div", { "data-map": entry.name, class: "parameter" });
  byId("map-dials").append(host);
  const changed = () => repaint(drawPlane);
  if (typeof offered[0] === "string") {
    menu(host, own, { label: name, options: offered.map((x) => [x, x]), value, changed });
  } else {
    const [min, max, step] = offered;
    slider(host, own, { label: name, min, max, step, value, changed });
  }
}

function changeMap() {
  for (const host of document.querySelectorAll("#map-dials [data-map]")) host.hidden = host.dataset.map !== state.map;
  repaint(drawPlane);
}

// The setting of a map by the values of its controls, as `mapWeights` takes it.
function planeSetting(name = state.map) {
  const entry = PLANE_MAPS.find((each) => each.name === name);
  const parameters = { ...entry.parameters };
  for (const control of entry.controls) {
    const value = state[`${name}.${control.name}`];
    parameters[control.name] = control.name === "separate" ? value === "true" : value;
  }
  const projection = name === "favor" ? favorDraws(parameters, parameters.seed) : name === "t2r" ? plane.learned[parameters.seed] : null;
  return { ...entry, parameters, projection };
}

function favorDraws({ features, kind }, seed) {
  return plane.draws[seed].subarray(0, 2 * (kind === "positive" ? features : features / 2));
}

const planeHead = () => ({ q: plane.q, k: plane.k, n: plane.q.length / 2, d: 2, causal: false, scale: Math.SQRT1_2 });

function drawPlane() {
  showPoints(state.points);
  const head = planeHead();
  const softmax = softmaxWeights(head);
  const map = mapWeights(head, planeSetting());
  plane.shown = { softmax, map, ...judge(map, softmax, head.n) };
  drawPoints();
  const top = strong(softmax);
  const pictures = { softmax, map, difference: map.map((x, at) => x - softmax[at]) };
  for (const [name, numbers] of Object.entries(pictures)) {
    const context = paint(byId(`map-${name}`), numbers, head.n, head.n, { top, kind: name === "difference" ? "signed" : "weight" });
    markChosen(context, head.n);
  }
  byId("map-name").textContent = state.map;
  const { mse, condition, negative, undefinedRows } = plane.shown;
  tell("map-told", [
    ["mean squared error", short(mse), "mse"],
    ["condition number", short(condition), "condition"],
    ["negative weights", percent(negative), "negative"],
    ["rows without weights", String(undefinedRows), "undefined"],
  ]);
  byId("map-sign").textContent = SIGNS[planeSetting().sign];
  byId("favor").hidden = state.map !== "favor";
  const seen = JSON.stringify([planeSetting().parameters, ...plane.q.subarray(0, 2), ...plane.k.subarray(0, 2)]);
  if (state.map === "favor" && plane.estimated !== seen) (head.n > 64 ? later : repaint)(drawFavor);
  plane.estimated = seen;
}

const SIGNS = {
  positive: "Its similarities are always positive, so every row has weights.",
  "non-negative": "Its similarities are never negative, but all of a row can be 0; then the row has no weights (grey).",
  any: "Its similarities can be negative (orange). If those of a row cancel, its weights become huge, and the condition number tells how close it came.",
};

const pointSize = () => (plane.q.length > 64 ? 4 : 8);
const sides = () => [["k", plane.k, "--s1"], ["q", plane.q, "--s0"]];

function drawPoints() {
  const canvas = byId("plane");
  const width = canvas.parentElement.clientWidth;
  const context = fitted(canvas, width, width);
  const [line, strongLine, paper] = ["--line", "--line-strong", "--paper"].map((name) => ink(context, name));
  const place = (x) => ((x + REACH) / (2 * REACH)) * width;
  for (let x = -REACH; x <= REACH; x += 1) {
    context.fillStyle = x === 0 ? strongLine : line;
    context.fillRect(place(x), 0, 1, width);
    context.fillRect(0, place(-x), width, 1);
  }
  const size = pointSize();
  context.font = font(12);
  context.textAlign = "center";
  for (const [side, points, name] of sides()) {
    const colour = ink(context, name);
    for (let i = 0; i < points.length / 2; i += 1) {
      const [x, y] = [place(points[2 * i]), place(-points[2 * i + 1])];
      const chosen = plane.chosen.side === side && plane.chosen.at === i;
      context.beginPath();
      if (side === "q") context.rect(x - size, y - size, 2 * size, 2 * size);
      else context.arc(x, y, size * 1.15, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.fill();
      context.lineWidth = chosen ? 3 : 1;
      context.strokeStyle = chosen ? ink(context, "--ink") : paper;
      context.stroke();
      if (size > 4) {
        context.fillStyle = paper;
        context.fillText(String(i + 1), x, y + 4);
      }
    }
  }
  const { side, at } = plane.chosen;
  const [x, y] = [0, 1].map((c) => short(plane[side][2 * at + c], 2));
  canvas.setAttribute("aria-label", `Queries and keys in the plane. ${side === "q" ? "Query" : "Key"} ${at + 1} is at ${x}, ${y}. Arrow keys move it; Page Up and Page Down choose another point.`);
  byId("plane-told").textContent = `${side === "q" ? "Query" : "Key"} ${at + 1} is at (${x}, ${y}).`;
}

// A frame around the row of the chosen query or the column of the chosen key.
function markChosen(context, n) {
  const side = context.canvas.parentElement.clientWidth;
  const cell = side / n;
  context.strokeStyle = ink(context, "--accent");
  context.lineWidth = 2;
  const from = Math.min(side - 3, Math.max(1, plane.chosen.at * cell));
  if (plane.chosen.side === "q") context.strokeRect(1, from, side - 2, Math.max(2, cell));
  else context.strokeRect(from, 1, Math.max(2, cell), side - 2);
}

function pointAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [within(((event.clientX - box.left) / box.width - 0.5) * 2 * REACH), within((0.5 - (event.clientY - box.top) / box.height) * 2 * REACH)];
}

// The point nearest to a pointer, and whether the pointer is on it.
function nearest(canvas, event) {
  const [x, y] = pointAt(canvas, event);
  let best = { distance: Infinity };
  for (const [side, points] of sides()) {
    for (let i = 0; i < points.length / 2; i += 1) {
      const distance = Math.hypot(points[2 * i] - x, points[2 * i + 1] - y);
      if (distance <= best.distance) best = { side, at: i, distance };
    }
  }
  const pixels = (best.distance / (2 * REACH)) * canvas.clientWidth;
  return { ...best, held: pixels <= 2 * pointSize() };
}

function dragTo(canvas, event) {
  plane[plane.chosen.side].set(pointAt(canvas, event), 2 * plane.chosen.at);
  repaint(drawPlane);
}

function moveChosen(event) {
  const moves = { ArrowUp: [0, 0.1], ArrowDown: [0, -0.1], ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0] };
  const turns = { PageUp: -1, PageDown: 1 };
  const { side, at } = plane.chosen;
  const n = plane.q.length / 2;
  if (event.key in turns) {
    const next = ((side === "q" ? 0 : n) + at + turns[event.key] + 2 * n) % (2 * n);
    plane.chosen = next < n ? { side: "q", at: next } : { side: "k", at: next - n };
  } else if (event.key in moves) {
    moves[event.key].forEach((by, c) => (plane[side][2 * at + c] = within(plane[side][2 * at + c] + by)));
    keepPoints();
  } else return;
  event.preventDefault();
  repaint(drawPlane);
}

// φ(q)·φ(k) of the first query and key, for one draw of ω after another.
function favorEstimates(setting) {
  const root = Math.sqrt(setting.scale);
  const [q, k] = [plane.q, plane.k].map((x) => x.slice(0, 2).map((value) => value * root));
  const estimates = plane.draws.map((_, seed) => {
    const projection = favorDraws(setting.parameters, seed);
    const [phiQ, phiK] = [q, k].map((x) => MAPS.favor.phi(x, setting.parameters, 1, 2, projection));
    return phiQ.values.reduce((sum, value, c) => sum + value * phiK.values[c], 0) * Math.exp(phiQ.log[0] + phiK.log[0]);
  });
  return { estimates, truth: Math.exp(q[0] * k[0] + q[1] * k[1]), q, k };
}

// The variance of the estimate with independent draws; see simulate.features.
function favorVariance({ features: m, kind }, q, k) {
  const dot = q[0] * k[0] + q[1] * k[1];
  const sum = Math.hypot(q[0] + k[0], q[1] + k[1]) ** 2;
  const difference = Math.hypot(q[0] - k[0], q[1] - k[1]) ** 2;
  if (kind === "trig") return (Math.exp(sum - 2 * dot) * (1 - Math.exp(-difference)) ** 2) / m;
  const positive = (Math.exp(2 * dot) * (Math.exp(sum) - 1)) / m;
  return kind === "positive" ? positive : (1 - Math.exp(-sum)) * positive;
}

function drawFavor() {
  const setting = planeSetting("favor");
  const { estimates, truth, q, k } = favorEstimates(setting);
  const seen = estimates.slice(0, state.redraws);
  let total = 0;
  const means = seen.map((x, at) => ({ x: at + 1, y: (total += x) / (at + 1) }));
  const mean = total / seen.length;
  const variance = seen.reduce((sum, x) => sum + (x - mean) ** 2, 0) / Math.max(1, seen.length - 1);
  const low = Math.min(0, ...estimates);
  const high = 1.1 * Math.max(truth, ...estimates);
  const plot = frame(byId("favor-chart"), { height: 260, xs: [0, estimates.length + 1], ys: [low, high], xLabel: "draws of ω", yLabel: "φ(q)·φ(k)", xAxis: LINEAR, yAxis: { ...LINEAR, format: (x) => minus(String(x)) }, title: "estimates of the first query and key" });
  const level = plot.y(truth);
  plot.svg.append(
    draw("line", { class: "reference", x1: plot.left, x2: plot.right, y1: level, y2: level }),
    draw("text", { class: "note", x: plot.right, y: level - 6, "text-anchor": "end" }, "exp(s·q·k)"),
    draw("path", { class: "line s1", d: path(means.map(({ x, y }) => [plot.x(x), plot.y(y)])) }),
  );
  drawMarks(plot, "soft", seen.map((y, at) => ({ x: at + 1, y, words: `draw ${at + 1}: ${short(y)}` })));
  tell("favor-told", [
    ["mean", short(mean), "mean"],
    ["exp(s·q·k)", short(truth), "truth"],
    ["variance of a draw", seen.length > 1 ? short(variance) : "–", "variance"],
    ["formula, independent ω", short(favorVariance(setting.parameters, q, k)), "formula"],
  ]);
}

const MAP_QUESTIONS = [
  {
    words: "Choose relu and drag the points until some row has no weights.",
    check: () => state.map === "relu" && plane.shown.undefinedRows > 0,
    why: "A query whose similarity to every key is 0 has the normaliser 0: 0/0. elu + 1 cannot do that.",
    hint: "With relu, a query with two negative coordinates has features (0, 0). Drag one to the lower left.",
  },
  {
    words: "Which of these maps can give a negative weight?",
    options: ["elu", "taylor of order 2", "favor, kind trig", "hedgehog"],
    right: 2,
    why: "cos and sin features have inner products of either sign; the other three are positive everywhere.",
    hint: "Choose each map and look for orange in the middle picture, or read the line below the numbers.",
  },
  {
    words: "favor with 4 times as many features: by which factor does the standard deviation of φ(q)·φ(k) fall?",
    answer: () => 2,
    why: "The variance is a constant over m, so the standard deviation falls as 1/√m.",
    hint: "Choose favor and compare “formula” at 16 and 64 features. That is the variance: take its root.",
  },
];
