// Chapter 1: (QKᵀ)V and Q(KᵀV) as blocks that fill, row by row.

const STEPS = byId("orders-steps");

function buildOrders() {
  const dials = byId("orders-dials");
  const whole = { format: String, changed: changeSizes };
  slider(dials, "n", { label: "tokens n", min: 2, max: 256, value: 96, ...whole });
  slider(dials, "d", { label: "width of keys d", min: 2, max: 64, value: 16, ...whole });
  slider(dials, "M", { label: "width of values M", min: 2, max: 64, value: 16, ...whole });
  const rows = (step) => `${step} of ${2 * state.n} rows`;
  orders.step = slider(STEPS, "step", { label: "step", min: 0, max: 192, value: 96, format: rows, changed: () => repaint(drawOrders) });
  player(STEPS, "step", { seconds: 6, changed: () => repaint(drawOrders) });
  ask("orders", ORDER_QUESTIONS);
}

const orders = { step: null };

function changeSizes() {
  orders.step.setRange(0, 2 * state.n);
  repaint(drawOrders);
}

function drawOrders() {
  orders.step.setRange(0, 2 * state.n);
  const sizes = { n: state.n, d: state.d, width: state.M, step: state.step };
  const now = countOrders(sizes);
  const all = countOrders({ ...sizes, step: 2 * state.n });
  drawProducts(byId("orders-weights"), true);
  drawProducts(byId("orders-state"), false);
  for (const name of ["weights", "state"]) {
    tell(`orders-${name}-told`, [
      ["multiplications so far", whole(now[name].products), "products"],
      ["in the end", whole(all[name].products), "total"],
      ["bytes in between", bytes(now[name].bytes), "bytes"],
    ]);
  }
  const ratio = all.weights.products / all.state.products;
  byId("orders-verdict").textContent = `With n = ${state.n}, Q(KᵀV) takes ${ratio >= 1 ? `1/${short(ratio)} of` : `${short(1 / ratio)} times`} the work. The two cross at n = 2dM/(d + M) = ${short(all.crossover)}.`;
  drawCrossover(all.crossover);
}

// One order as matrices to scale: what is finished is filled, the row at work is orange.
function drawProducts(canvas, byWeights) {
  const { n, d, M, step } = state;
  const width = canvas.parentElement.clientWidth;
  const sign = width < 500 ? 15 : 26;
  const widths = [d + 2 * n + 2 * M, n + 4 * M + d]; // of the two orders, which share a scale
  const units = widths[byWeights ? 0 : 1];
  const scale = Math.min((width - 5 * sign - 4) / Math.max(...widths), (width < 500 ? 190 : 250) / Math.max(n, d, M));
  const tall = scale * Math.max(n, byWeights ? n : d) + 40;
  const context = fitted(canvas, width, tall);
  const [black, faint, line, accent, warm] = ["--ink", "--faint", "--line-strong", "--accent", "--s1"].map((name) => ink(context, name));
  context.textAlign = "center";
  const middle = 24 + (tall - 40) / 2;
  const made = Math.min(step, n);
  const used = Math.max(0, step - n);
  let left = Math.max(0, (width - units * scale - (byWeights ? 4 : 5) * sign) / 2);
  // `done` and `at` are [first, last) rows; `across` if they are columns of a transposed matrix.
  const matrix = (name, rows, columns, { done = 0, at = null, across = false, strength = 0.75 } = {}) => {
    const [w, h] = [Math.max(2, columns * scale), Math.max(2, rows * scale)];
    const top = middle - h / 2;
    const part = (from, to, colour, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = colour;
      const [a, b] = [from, Math.max(to, from + 1 / scale)];
      if (across) context.fillRect(left + a * scale, top, (b - a) * scale, h);
      else context.fillRect(left, top + a * scale, w, (b - a) * scale);
      context.globalAlpha = 1;
    };
    if (done) part(0, done, accent, strength);
    if (at !== null) part(at, at + 1, warm, 0.9);
    context.strokeStyle = line;
    context.strokeRect(left, top, w, h);
    context.fillStyle = black;
    context.font = font(13);
    context.fillText(name, left + w / 2, Math.max(12, top - 6));
    left += w;
  };
  const symbol = (text) => {
    context.fillStyle = faint;
    context.font = font(15);
    context.fillText(text, left + sign / 2, middle + 5);
    left += sign;
  };
  const first = step < n ? made : null;
  const second = step >= n && used < n ? used : null;
  if (byWeights) {
    matrix("Q", n, d, { at: first });
    symbol("·");
    matrix("Kᵀ", d, n, { done: first === null ? 0 : n, across: true, strength: 0.2 });
    symbol("→");
    matrix("QKᵀ", n, n, { done: made, at: second });
    symbol("·");
    matrix("V", n, M, { done: second === null ? 0 : n, strength: 0.2 });
    symbol("→");
    matrix("O", n, M, { done: used });
  } else {
    matrix("Kᵀ", d, n, { at: first, across: true });
    symbol("·");
    matrix("V", n, M, { at: first });
    symbol("→");
    matrix("KᵀV", d, M, { done: made ? d : 0, strength: 0.1 + (0.8 * made) / n });
    symbol("⇒");
    matrix("Q", n, d, { at: second });
    symbol("·");
    matrix("KᵀV", d, M, { done: made === n ? d : 0, strength: 0.9 });
    symbol("→");
    matrix("O", n, M, { done: used });
  }
  const words = byWeights ? `QKᵀ has ${made} of ${n} rows, the output ${used}` : `KᵀV holds ${made} of ${n} tokens, the output has ${used} of ${n} rows`;
  canvas.setAttribute("aria-label", `${byWeights ? "(QKᵀ)V" : "Q(KᵀV)"}: ${words}.`);
}

function drawCrossover(crossover) {
  const lengths = [2, 4096];
  const count = (n, name) => countOrders({ n, d: state.d, width: state.M })[name].products;
  const plot = frame(byId("orders-chart"), {
    height: 280,
    xs: lengths,
    ys: [count(2, "weights") / 1.5, Math.max(count(4096, "weights"), count(4096, "state")) * 1.5],
    xLabel: "tokens n",
    yLabel: "multiplications",
    title: "multiplications against tokens",
  });
  [["weights", 1], ["state", 0]].forEach(([name, series]) => drawLine(plot, series, lengths.map((n) => ({ x: n, y: count(n, name) }))));
  drawLegend("orders-legend", [{ name: "(QKᵀ)V", series: 1 }, { name: "Q(KᵀV)", series: 0 }]);
  [["weights", 1], ["state", 0]].forEach(([name, series]) => drawMarks(plot, series, [{ x: state.n, y: count(state.n, name), words: `n = ${state.n}: ${whole(count(state.n, name))}` }]));
  if (crossover > lengths[0]) plot.svg.append(draw("circle", { class: "crossover", cx: plot.x(crossover), cy: plot.y(count(crossover, "state")), r: 7 }, draw("title", {}, `n = ${short(crossover)}`)));
}

const ORDER_QUESTIONS = [
  {
    words: "Keys and values have width 64. At which n do both orders cost the same?",
    answer: () => countOrders({ n: 1, d: 64, width: 64 }).crossover,
    near: 0.02,
    why: "n²·(64 + 64) = 2·n·64·64 gives n = 64: 2dM/(d + M).",
    hint: "Set n²(d + M) equal to 2ndM, or look for the ring in the chart with d = M = 64.",
  },
  {
    words: "The text becomes twice as long. How much more work is each order?",
    options: ["twice for both", "4 times for (QKᵀ)V, twice for Q(KᵀV)", "4 times for both"],
    right: 1,
    why: "n² grows by 4 and n by 2: the lines in the chart have slopes 2 and 1.",
    hint: "Which of the two counts contains n²? Double n and compare “in the end”.",
  },
  {
    words: "How many bytes does Q(KᵀV) keep in between for d = M = 64 and n = 1,000,000, in float32?",
    answer: () => countOrders({ n: 1e6, d: 64, width: 64 }).state.bytes,
    near: 0,
    unit: "bytes",
    why: "d·M·4 = 16,384 bytes, whatever n is. QKᵀ would have 4·10¹² bytes.",
    hint: "Move n: does “bytes in between” of Q(KᵀV) change? KᵀV has d·M numbers of 4 bytes.",
  },
];
