// Chapter 4: tokens arrive, and a state of constant size adds or corrects.

const STREAM = { d: 8, width: 8, letters: ["A", "B", "C", "D", "E", "F"] };
const SEQUENCES = {
  once: ["every key once", "ABCDEF"],
  twice: ["A is written twice", "ABCADE"],
  often: ["keys come back", "ABCDEFABACADBEFA"],
};
const RULES = { adds: false, corrects: true };

function buildStream() {
  const dials = byId("stream-dials");
  const changed = () => repaint(drawStream);
  menu(dials, "tokens", { label: "tokens", options: ["twice", "once", "often"].map((name) => [name, SEQUENCES[name][0]]), changed: changeTokens });
  menu(dials, "keys", { label: "keys", options: [["apart", "at right angles"], ["alike", "in random directions"]], changed });
  slider(dials, "decay", { label: "decay a", min: 0.5, max: 1, step: 0.01, value: 1, format: (x) => x.toFixed(2), changed });
  slider(dials, "beta", { label: "strength β of a correction", min: 0, max: 2, step: 0.05, value: 1, format: (x) => x.toFixed(2), changed });
  stream.read = slider(byId("stream-steps"), "read", { label: "tokens read", min: 0, max: 16, value: 4, changed });
  player(byId("stream-steps"), "read", { seconds: 5, changed });
  for (const rule of Object.keys(RULES)) {
    stream.rows[rule] = STREAM.letters.map(readingRow);
    byId(`read-${rule}`).append(...stream.rows[rule].map(({ line }) => line));
  }
  buildParity();
  ask("stream", STREAM_QUESTIONS);
}

const stream = { read: null, rows: {} };

function changeTokens() {
  stream.read.setRange(0, SEQUENCES[state.tokens][1].length);
  repaint(drawStream);
}

// Keys of length 1 of the six letters: rows of the identity, or random directions.
function letterKeys(kind) {
  const { d, letters } = STREAM;
  if (kind === "apart") return Float64Array.from({ length: letters.length * d }, (_, at) => (Math.floor(at / d) === at % d ? 1 : 0));
  const drawn = normals(letters.length * d, 5);
  return drawn.map((x, at) => x / Math.hypot(...drawn.subarray(at - (at % d), at - (at % d) + d)));
}

// The text as keys and values: each token has a pattern of its own, of 0 and 1.
function streamTokens(name, kind) {
  const { d, width, letters } = STREAM;
  const text = SEQUENCES[name][1];
  const own = letterKeys(kind);
  const next = uniform(3);
  const k = new Float64Array(text.length * d);
  const v = Float64Array.from({ length: text.length * width }, () => (next() < 0.5 ? 0 : 1));
  [...text].forEach((letter, t) => k.set(own.subarray(letters.indexOf(letter) * d, (letters.indexOf(letter) + 1) * d), t * d));
  return { text, k, v, own };
}

function drawStream() {
  const { d, width, letters } = STREAM;
  const { text, k, v, own } = streamTokens(state.tokens, state.keys);
  stream.read.setRange(0, text.length);
  drawLetters(text);
  const last = (letter) => text.slice(0, state.read).lastIndexOf(letter);
  const known = letters.filter((letter) => last(letter) >= 0);
  for (const [rule, corrects] of Object.entries(RULES)) {
    const found = runStream({ k, v, n: state.read, d, width, decay: state.decay, beta: state.beta, corrects });
    paint(byId(`state-${rule}`), found, d, width, { top: 2, kind: "signed" });
    byId(`state-${rule}`).setAttribute("aria-label", `The ${d}×${width} numbers of the state that ${rule}, after ${state.read} tokens`);
    let [lost, size] = [0, 0];
    const room = stream.rows[rule][0].read.parentElement.clientWidth;
    const look = { top: 2, kind: "signed", width: room, height: 16 };
    letters.forEach((letter, at) => {
      const row = stream.rows[rule][at];
      const read = readState(found, own.subarray(at * d, (at + 1) * d), width);
      const written = last(letter) < 0 ? null : v.subarray(last(letter) * width, (last(letter) + 1) * width);
      paintStrip(row.written, written || new Float64Array(width), `${letter} was written`, look);
      paintStrip(row.read, read, `${letter} gives back`, look);
      row.words.textContent = "never written";
      if (!written) return;
      const error = Math.hypot(...read.map((x, c) => x - written[c]));
      row.words.textContent = `off by ${short(error, 2)}`;
      lost += error ** 2;
      size += written.reduce((sum, x) => sum + x * x, 0);
    });
    tell(`stream-${rule}-told`, [["error of what the keys give back", known.length ? percent(Math.sqrt(lost / size)) : "–", "error"]]);
  }
}

// A row of a table for each key: its last value, what it gives back, and how far that is off.
function readingRow(letter) {
  const [written, read] = [0, 1].map(() => make("canvas", { role: "img" }));
  const words = make("td");
  const strips = [written, read].map((canvas) => make("td", {}, make("div", { class: "strip" }, canvas)));
  return { line: make("tr", {}, make("th", { scope: "row" }, letter), ...strips, words), written, read, words };
}

function paintStrip(canvas, numbers, label, look) {
  paint(canvas, numbers, 1, numbers.length, look);
  canvas.setAttribute("aria-label", `${label}: ${[...numbers].map((x) => short(x, 2)).join(", ")}`);
}

function drawLetters(text) {
  byId("stream-text").replaceChildren(...[...text].map((letter, t) => make("span", { class: t < state.read ? (t === state.read - 1 ? "now" : "past") : "next" }, letter)));
}

const parity = { bits: [1, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0] };

function buildParity() {
  const host = byId("parity-bits");
  parity.bits.forEach((_, t) => {
    const button = make("button", { type: "button", class: "bit" });
    button.addEventListener("click", () => {
      parity.bits[t] = 1 - parity.bits[t];
      repaint(drawParity);
    });
    host.append(button);
  });
  slider(byId("parity-dials"), "flip", { label: "strength β", min: 0, max: 2, step: 0.05, value: 1.5, format: (x) => x.toFixed(2), changed: () => repaint(drawParity) });
}

// A state of one number that starts at 1. A token with the bit b has the key b and the value 0, so a
// correction multiplies the state by 1 − βb.
function parityStates(bits, beta) {
  const k = Float64Array.from(bits);
  return bits.map((_, t) => runStream({ k, v: new Float64Array(k.length), n: t + 1, d: 1, width: 1, beta, corrects: true, start: [1] })[0]);
}

function drawParity() {
  const { bits } = parity;
  [...byId("parity-bits").children].forEach((button, t) => {
    button.textContent = String(bits[t]);
    button.setAttribute("aria-pressed", String(bits[t] === 1));
    button.setAttribute("aria-label", `bit ${t + 1}: ${bits[t]}`);
  });
  const states = parityStates(bits, state.flip);
  let ones = 0;
  const right = bits.map((bit) => 1 - 2 * ((ones += bit) % 2));
  const plot = frame(byId("parity-chart"), { height: 220, xs: [0.5, bits.length + 0.5], ys: [-1.15, 1.15], xLabel: "bits read", yLabel: "state", xAxis: LINEAR, yAxis: { ...LINEAR, ticks: () => [-1, 0, 1], format: (x) => minus(String(x)) }, title: "the state after each bit" });
  drawLine(plot, "soft", right.map((y, t) => ({ x: t + 1, y })), Infinity, " pale");
  drawLine(plot, 0, states.map((y, t) => ({ x: t + 1, y })));
  drawMarks(plot, 0, states.map((y, t) => ({ x: t + 1, y, words: `after bit ${t + 1}: ${short(y)}` })));
  drawLegend("parity-legend", [{ name: "the state", series: 0 }, { name: "1 if the number of ones so far is even, −1 if it is odd", series: "soft" }]);
  byId("parity-told").textContent = `A one multiplies the state by 1 − β = ${short(1 - state.flip, 2)}. The state is ${short(states[states.length - 1], 2)} in the end; the parity is ${minus(String(right[right.length - 1]))}.`;
}

const STREAM_QUESTIONS = [
  {
    words: "A key of length 1 is written with the value 1, and later with the value 3 (a = 1, β = 1). The state that adds gives back …",
    answer: () => runStream({ k: Float64Array.of(1, 1), v: Float64Array.of(1, 3), n: 2, d: 1, width: 1, corrects: false })[0],
    near: 0,
    why: "It holds 1 + 3. The one that corrects writes only the difference 3 − 1 and gives back 3.",
    hint: "Both values are added to the same place of the state.",
  },
  {
    words: "The decay is 0.9. After how many further tokens is less than half of a value left?",
    answer: () => Math.ceil(Math.log(0.5) / Math.log(0.9)),
    near: 0,
    why: "0.9⁶ = 0.53 and 0.9⁷ = 0.48.",
    hint: "Each token multiplies the state by 0.9. Multiply until it falls below 0.5.",
  },
  {
    words: "Set β so that the state of the lower picture is the parity of its bits after every bit.",
    check: () => parityStates([1, 1, 0, 1], state.flip).every((x, t) => Math.abs(x - [-1, 1, 1, -1][t]) < 1e-9),
    why: "1 − β = −1: a negative eigenvalue flips the sign. With β ≤ 1 a state can only shrink, and it cannot count to two.",
    hint: "A one must multiply the state by −1.",
  },
];
