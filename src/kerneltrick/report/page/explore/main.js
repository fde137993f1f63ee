// The whole page: header, chapters, and the address.

const CHAPTERS = ["orders", "map", "dial", "stream", "recall"];
const MOVED = ["move n, d and M", "move queries and keys", "move a window", "move through tokens", "guess"];
let goTo = null;

function drawProgress() {
  const told = `${answered.size} of ${posed} questions answered`;
  byId("progress").textContent = told;
}

view.read = (given) => {
  for (const [name, value] of Object.entries(usual)) {
    if (!given.has(name)) continue;
    const control = byId(`control-${name}`);
    if (control.tagName === "SELECT") {
      if ([...control.options].some((option) => option.value === given.get(name))) state[name] = given.get(name);
    } else if (Number.isFinite(Number(given.get(name)))) {
      state[name] = Math.min(Number(control.max), Math.max(Number(control.min), Number(given.get(name))));
    } else state[name] = value;
  }
  if (CHAPTERS.includes(given.get("chapter"))) goTo = given.get("chapter");
};

view.parts = () => Object.fromEntries(Object.entries(usual).filter(([name, value]) => state[name] !== value).map(([name]) => [name, state[name]]));

view.draw = () => {
  inks = {};
  plane.estimated = "";
  for (const display of Object.values(shownBy)) display();
  changeMap();
  for (const drawing of [drawOrders, drawPlane, drawDial, drawWindows, drawStream, drawParity, drawRecall]) drawing();
  if (goTo) byId(goTo).scrollIntoView();
  goTo = null;
};

function start() {
  fillHeader({
    told: "Attention compares every token with every other one. If the similarity of a query and a key is an inner product of features, the products can be taken in another order, and the work grows with n instead of n².",
    findings: ["Move the sliders, drag the points, press Play: every picture answers at once.", "Each chapter asks two or three questions. The page checks the answers.", "Your browser computes all numbers as the library does."],
    facts: CHAPTERS.map((name, at) => [`${at + 1} ${byId(`${name}-title`).textContent}`, MOVED[at]]),
    colophon: "This file needs no network. The heads in chapter 3 are three layers of all-MiniLM-L6-v2, reading 128 tokens of Moby-Dick.",
  });
  buildOrders();
  buildPlane();
  buildDial();
  buildStream();
  buildRecall();
  drawProgress();
  readAddress();
  show();
}

start();
window.kerneltrick = {
  state, plane, dial, parity, frameTimes, repaint, planeSetting, planeHead, drawPlane, mapWeights, softmaxWeights, judge, favorEstimates, favorVariance, countOrders,
  countDial, dialAt, dialHead, smallestWindow, runStream, streamTokens, parityStates, firstPairs, recallRead, recallShare, recallSetting, capacity,
  drawings: { drawOrders, drawPlane, drawDial, drawStream, drawParity },
};
