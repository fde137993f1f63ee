// Softmax, the map and their difference as pictures that share a crosshair.

const PANELS = ["softmax", "map", "difference"];
const MARGIN = { left: 30, top: 1, right: 1, bottom: 22 };
const tokens = comparison.data.tokens;
const panels = {};
let shown = null; // the arrays in the panels, and the largest weight of the scale

function buildPanels() {
  for (const name of PANELS) {
    const heat = make("canvas", { class: "heat", "aria-hidden": "true" });
    const cross = make("canvas", {
      class: "cross",
      role: "application",
      "aria-roledescription": "attention picture",
      "aria-describedby": "readout",
      tabindex: name === "softmax" ? "0" : "-1",
    });
    const empty = make("p", { class: "empty", hidden: "" });
    byId(`panel-${name}`).append(heat, cross, empty);
    panels[name] = { heat, cross, empty, bar: byId(`bar-${name}`), title: byId(`title-${name}`) };
    cross.addEventListener("pointermove", (event) => point(cross, event));
    cross.addEventListener("pointerdown", (event) => point(cross, event));
    cross.addEventListener("keydown", moveByKey);
  }
  if (tokens) {
    for (const name of ["softmax", "map"]) {
      const spans = tokens.slice(0, N).map((token, j) => make("span", { "data-j": j }, token));
      byId(`ribbon-${name}`).append(...spans.flatMap((span) => [span, " "]));
      byId(`ribbon-${name}`).addEventListener("click", (event) => {
        if (event.target.dataset.j !== undefined) moveTo(Number(event.target.dataset.j), state.j);
      });
      panels[name].spans = spans;
    }
  } else {
    byId("ribbons").remove();
    byId("ribbon-reading").remove();
  }
}

function moveTo(i, j) {
  state.i = Math.min(N - 1, Math.max(0, i));
  state.j = Math.min(N - 1, Math.max(0, j));
  drawCross();
  writeAddress();
}

function point(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const side = box.width - MARGIN.left - MARGIN.right;
  const place = (offset) => Math.floor((offset / side) * N);
  const i = place(event.clientY - box.top - MARGIN.top);
  const j = place(event.clientX - box.left - MARGIN.left);
  if (i >= 0 && i < N && j >= 0 && j < N) moveTo(i, j);
}

function moveByKey(event) {
  const step = event.shiftKey ? 10 : 1;
  const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
  if (event.altKey || event.ctrlKey || event.metaKey || !(event.key in moves)) return;
  event.preventDefault();
  moveTo(state.i + moves[event.key][0], state.j + moves[event.key][1]);
}

const visible = (at) => !CAUSAL || at % N <= Math.floor(at / N);

// The 99.5th percentile of the softmax weights, so that one strong token does not hide the rest.
function largest(softmax) {
  const sorted = softmax.filter((value, at) => visible(at) && Number.isFinite(value)).sort();
  return sorted.length ? sorted[Math.floor(0.995 * (sorted.length - 1))] || 1 : 1;
}

function updateAttention() {
  const softmax = weights(state.layer, state.head);
  const map = weights(state.layer, state.head, state.map);
  shown = { softmax, map, difference: map && map.map((value, at) => value - softmax[at]), top: largest(softmax) };
  const label = labels[state.map];
  panels.softmax.title.textContent = "softmax";
  panels.map.title.textContent = label;
  panels.difference.title.textContent = `${label} − softmax`;
  byId("weights-title").textContent = `Weights of layer ${LAYERS[state.layer]}, head ${HEADS[state.head]}`;
  const where = `layer ${LAYERS[state.layer]}, head ${HEADS[state.head]}`;
  for (const name of PANELS) {
    const title = panels[name].title.textContent;
    panels[name].cross.setAttribute("aria-label", `Weights: ${title}, ${where}. Arrow keys move the crosshair.`);
    panels[name].bar.setAttribute("aria-label", `Colour scale of ${title}`);
  }
  if (tokens) {
    byId("ribbon-softmax-title").textContent = "softmax attends to";
    byId("ribbon-map-title").textContent = `${label} attends to`;
  }
  byId("attention-note").textContent = attentionNote();
  drawAttention();
}

function attentionNote() {
  const notes = [];
  if (N < comparison.data.n) {
    notes.push(`Shows the first ${N} of ${comparison.data.n} tokens${CAUSAL ? "" : ", with weights computed among these only"}.`);
  }
  if (shown.map && shown.map.some((value) => value < 0)) notes.push("Negative weights are orange.");
  if (shown.map && shown.map.some(Number.isNaN)) notes.push("Grey rows have no weights, because their sum is zero or the data is not finite.");
  return notes.join(" ");
}

function pixels(values, name) {
  const colours = palette();
  const forward = SCALES[state.scale].forward;
  const image = new ImageData(N, N);
  for (let at = 0; at < N * N; at += 1) {
    const value = values[at];
    const t = Math.min(1, forward(Math.abs(value) / shown.top));
    const positive = name === "difference" ? colours.more : colours.weight;
    const table = value >= 0 ? positive : name === "difference" ? colours.less : colours.more;
    let colour = table.subarray(3 * Math.round(255 * t), 3 * Math.round(255 * t) + 3);
    if (!visible(at)) colour = colours.outside;
    else if (Number.isNaN(value)) colour = colours.undefined;
    image.data.set(colour, 4 * at);
    image.data[4 * at + 3] = 255;
  }
  return image;
}

function drawAttention() {
  if (!shown) return;
  for (const name of PANELS) {
    const { heat, cross, empty } = panels[name];
    const width = heat.parentElement.clientWidth;
    const side = width - MARGIN.left - MARGIN.right;
    const height = side + MARGIN.top + MARGIN.bottom;
    for (const canvas of [heat, cross]) canvas.style.aspectRatio = `${width} / ${height}`;
    const context = canvasOf(heat, width, height);
    empty.hidden = Boolean(shown[name]);
    empty.textContent = "This file does not contain the formula of this map, so its weights cannot be drawn.";
    if (shown[name]) {
      const small = make("canvas", { width: N, height: N });
      small.getContext("2d").putImageData(pixels(shown[name], name), 0, 0);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, MARGIN.left, MARGIN.top, side, side);
    }
    axes(context, side);
    if (printing) crosshair(context, side); // a clear canvas on top would be printed white
    drawBar(name, width);
  }
  drawCross();
}

function axes(context, side) {
  context.strokeStyle = colourFor(context, "--line-strong");
  context.strokeRect(MARGIN.left - 0.5, MARGIN.top - 0.5, side + 1, side + 1);
  context.fillStyle = colourFor(context, "--faint");
  context.font = font(11);
  const step = [1, 2, 5, 8, 16, 32, 64].find((size) => N / size <= 8) || 64;
  for (let at = 0; at < N; at += step) {
    const centre = ((at + 0.5) / N) * side;
    context.textAlign = "right";
    context.textBaseline = "middle";
    if (at > 0) context.fillText(String(at), MARGIN.left - 6, MARGIN.top + centre);
    context.textAlign = "center";
    context.textBaseline = "top";
    if (at > 0 && centre < side - 14) context.fillText(String(at), MARGIN.left + centre, MARGIN.top + side + 7);
  }
  context.font = `italic ${font(12)}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("i", MARGIN.left - 9, MARGIN.top + 7);
  context.textBaseline = "top";
  context.fillText("j", MARGIN.left + side - 2, MARGIN.top + side + 6);
}

function drawBar(name, width) {
  const { bar } = panels[name];
  const colours = palette();
  const { forward, back } = SCALES[state.scale];
  const context = canvasOf(bar, width, 30);
  bar.style.aspectRatio = `${width} / 30`;
  const left = MARGIN.left;
  const length = width - left - MARGIN.right;
  const signed = name === "difference" || (name === "map" && shown.map && shown.map.some((value) => value < 0));
  const zero = signed ? 0.5 : 0;
  for (let x = 0; x < length; x += 1) {
    const t = (x / (length - 1) - zero) / (1 - zero);
    let table = t >= 0 ? colours.weight : colours.more;
    if (name === "difference") table = t >= 0 ? colours.more : colours.less;
    context.fillStyle = colourOf(table, Math.abs(t));
    context.fillRect(left + x, 0, 1.5, 8);
  }
  context.strokeStyle = colourFor(context, "--line-strong");
  context.strokeRect(left - 0.5, 0.5, length + 1, 8);
  context.fillStyle = colourFor(context, "--faint");
  context.font = font(11);
  context.textBaseline = "top";
  const marks = signed ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const written = [];
  for (const at of [0, 4, 2, 1, 3]) { // ends first; what would touch another is left out
    const t = marks[at];
    const value = t === 0 ? 0 : Math.sign(t) * back(Math.abs(t)) * shown.top;
    const text = (t === 1 ? "≥ " : t === -1 ? "≤ " : "") + short(forward(0) === 0 && t === 0 ? 0 : value, 2);
    const width = context.measureText(text).width;
    const x = left + (zero + (1 - zero) * t) * length - (at === 4 ? width : at === 0 ? 0 : width / 2);
    if (written.some(([from, to]) => x < to + 6 && from < x + width + 6)) continue;
    written.push([x, x + width]);
    context.textAlign = "left";
    context.fillText(text, x, 14);
  }
}

function drawCross() {
  if (!shown) return;
  for (const name of PANELS) {
    const { cross } = panels[name];
    const width = cross.parentElement.clientWidth;
    const side = width - MARGIN.left - MARGIN.right;
    crosshair(canvasOf(cross, width, side + MARGIN.top + MARGIN.bottom), side);
  }
  drawReadout();
  drawRibbons();
}

function crosshair(context, side) {
  const cell = side / N;
  const x = MARGIN.left + (state.j + 0.5) * cell;
  const y = MARGIN.top + (state.i + 0.5) * cell;
  const size = Math.max(cell, 5) + 3;
  context.fillStyle = context.strokeStyle = colourFor(context, "--accent");
  context.globalAlpha = 0.55;
  context.fillRect(MARGIN.left, y - 0.5, side, 1);
  context.fillRect(x - 0.5, MARGIN.top, 1, side);
  context.globalAlpha = 1;
  context.lineWidth = 2;
  context.strokeRect(x - size / 2, y - size / 2, size, size);
}

const tokenAt = (at) => (tokens ? make("bdi", { class: "token" }, tokens[at]) : null);

function drawReadout() {
  const at = state.i * N + state.j;
  const outside = !visible(at);
  const value = (values) => (!values || outside ? NaN : values[at]);
  const signed = (x) => (x > 0 ? `+${short(x)}` : short(x));
  const item = (key, term, ...content) =>
    make("div", { "data-key": key }, make("dt", {}, term), make("dd", {}, ...content));
  byId("readout").replaceChildren(
    item("query", "query i", make("b", {}, String(state.i)), tokenAt(state.i)),
    item("key", "key j", make("b", {}, String(state.j)), tokenAt(state.j)),
    item("softmax", "softmax", make("b", {}, short(value(shown.softmax)))),
    item("map", labels[state.map], make("b", {}, short(value(shown.map)))),
    item("difference", "difference", make("b", {}, outside ? "after the query" : signed(value(shown.difference)))),
  );
}

function drawRibbons() {
  if (!tokens) return;
  const colours = palette();
  for (const name of ["softmax", "map"]) {
    const row = shown[name] ? shown[name].subarray(state.i * N, (state.i + 1) * N) : null;
    panels[name].spans.forEach((span, j) => {
      const value = row ? row[j] : NaN;
      const t = Number.isFinite(value) ? SCALES[state.scale].forward(Math.min(1, Math.abs(value) / shown.top)) : 0;
      span.style.backgroundColor = t > 0.02 ? colourOf(value < 0 ? colours.more : colours.weight, t) : "";
      // The ramps run from the paper to the ink, so their far half needs letters of the paper's colour.
      span.classList.toggle("inverse", t > 0.5);
      span.classList.toggle("query", j === state.i);
      span.classList.toggle("key", j === state.j);
      span.classList.toggle("unseen", CAUSAL && j > state.i);
    });
  }
}
