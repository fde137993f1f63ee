// Chapter 5: how many pairs a state of m features gives back; the reader guesses first.

const RECALL = { counts: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], width: 16, seeds: 6, enough: 0.9 };
const recallTasks = {}; // by width and seed: 64 pairs, of which the first are used
let guess = null;

function buildRecall() {
  const dials = byId("recall-dials");
  menu(dials, "memory", { label: "feature map", options: values.recall.maps.map(({ map }) => [map, map === "softmax" ? "softmax: keeps every token" : map]), changed: hideRecall });
  menu(dials, "rule", { label: "the state", options: [["adds", "adds"], ["corrects", "corrects"]], changed: hideRecall });
  slider(dials, "size", { label: "width of keys d", min: 0, max: values.recall.widths.length - 1, value: 2, format: (at) => String(values.recall.widths[at]), changed: hideRecall });
  slider(dials, "passes", { label: "every pair is written", min: 1, max: 8, value: 1, format: (x) => (x === 1 ? "once" : `${x} times`), changed: hideRecall });
  byId("recall-guess").addEventListener("submit", (event) => {
    event.preventDefault();
    guess = Number(new FormData(event.target).get("guess"));
    repaint(drawRecall);
  });
  ask("recall", RECALL_QUESTIONS);
}

function hideRecall() {
  guess = null;
  byId("recall-guess").reset();
  repaint(drawRecall);
}

function firstPairs(d, seed, pairs) {
  const all = (recallTasks[`${d} ${seed}`] ||= recallTask(RECALL.counts[RECALL.counts.length - 1], d, RECALL.width, seed));
  return { ...all, keys: all.keys.subarray(0, pairs * d), values: all.values.subarray(0, pairs * RECALL.width), pairs };
}

function recallSetting(map = state.memory, size = state.size) {
  return values.recall.maps.find((entry) => entry.map === map).at[size];
}

// The mean share of pairs that come back, over draws of keys and values.
const knownMeans = {};
function recallMean(pairs, map = state.memory, size = state.size, rule = state.rule, passes = state.passes) {
  const d = values.recall.widths[size];
  const share = (seed) => recallShare(firstPairs(d, seed, pairs), recallSetting(map, size), rule === "corrects", passes);
  const mean = () => Array.from({ length: RECALL.seeds }, (_, seed) => share(seed)).reduce((a, b) => a + b, 0) / RECALL.seeds;
  return (knownMeans[`${pairs} ${map} ${size} ${rule} ${passes}`] ??= mean());
}

// The largest number of pairs up to which at least 90 % come back.
function capacity(map = state.memory, size = state.size, rule = state.rule, passes = state.passes) {
  let held = 0;
  for (let pairs = 1; pairs <= 64; pairs += 1) {
    if (recallMean(pairs, map, size, rule, passes) < RECALL.enough) break;
    held = pairs;
  }
  return held;
}

function drawRecall() {
  const d = values.recall.widths[state.size];
  const m = recallSetting().features;
  const all = state.memory === "softmax";
  tell("recall-told", [
    ["features m", all ? "–" : whole(m), "features"],
    ["numbers held", all ? `${d + RECALL.width} per pair` : whole(m * RECALL.width), "held"],
    ["pairs held", guess === null ? "guess first" : all && capacity() === 64 ? "64 or more" : String(capacity()), "capacity"],
    ["your guess", guess === null ? "–" : whole(guess), "guess"],
  ]);
  byId("recall-chart").hidden = guess === null;
  byId("recall-waiting").hidden = guess !== null;
  if (guess === null) return;
  const points = RECALL.counts.map((pairs) => ({ x: pairs, y: recallMean(pairs), words: `${pairs} pairs: ${percent(recallMean(pairs))}` }));
  const plot = frame(byId("recall-chart"), { height: 300, xs: [0.9, 72], ys: [0, 1.05], xLabel: "pairs written", yLabel: "share that comes back", xAxis: { ...LOG, ticks: () => [1, 2, 4, 8, 16, 32, 64] }, yAxis: { ...LINEAR, ticks: () => [0, 0.25, 0.5, 0.75, 1], format: percent }, title: "recall against pairs" });
  drawLine(plot, 0, points);
  drawMarks(plot, 0, points);
  drawLevel(plot, RECALL.enough, "90 %");
  const place = plot.x(Math.min(72, Math.max(0.9, guess)));
  plot.svg.append(draw("line", { class: "here", x1: place, x2: place, y1: plot.top, y2: plot.bottom }), draw("text", { class: "note strong", x: place + (guess > 30 ? -6 : 6), y: plot.bottom - 8, "text-anchor": guess > 30 ? "end" : "start" }, "your guess"));
}

const RECALL_QUESTIONS = [
  {
    words: "d = 16. Which state gives back the most pairs?",
    options: ["identity, 16 features", "elu, 16 features", "taylor of order 2, 153 features"],
    right: 2,
    why: "More features leave more room, but elu also wastes what it has: its features are positive, so all keys look alike.",
    hint: "Choose each map, guess, and compare “pairs held”.",
  },
  {
    words: "elu, d = 32, every pair is written 8 times: which state holds more pairs?",
    options: ["the one that adds", "the one that corrects", "both the same"],
    right: 1,
    why: "Adding the same pairs again changes nothing. A correction removes what other keys put there. Written only once, it can hold less: the last keys then disturb the first.",
    hint: "Choose elu, d = 32 and 8 times, and switch the state between adds and corrects.",
  },
  {
    words: "elu, d = 8: how many numbers does the state hold? (Values have 16 numbers.)",
    answer: () => recallSetting("elu", 1).features * RECALL.width,
    near: 0,
    why: "m·M = 8·16. The normaliser would add m more.",
    hint: "One number for every feature and every entry of a value.",
  },
];
