// The implied attention of a head as a picture, and what one query finds.

const EDGE = { left: 46, top: 1, right: 1, bottom: 24 };
const FOUND = 8; // tokens in the list of what a query finds
const heat = make("canvas", { class: "heat", "aria-hidden": "true" });
const cross = make("canvas", { class: "cross", role: "application", "aria-roledescription": "attention picture", "aria-describedby": "readout", tabindex: 0 });
let top99 = 1; // the weight with the strongest colour

const visibleText = (token) => token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "·";

function moveTo(row, key) {
  state.row = clamp(row, rows.length - 1);
  state.key = clamp(key, causal ? rows[state.row] : COUNT - 1);
  drawQuery();
  writeAddress();
}

function pointAt(event) {
  const box = cross.getBoundingClientRect();
  const x = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
  const y = (event.clientY - box.top - EDGE.top) / (box.height - EDGE.top - EDGE.bottom);
  if (x >= 0 && x < 1 && y >= 0 && y < 1) moveTo(Math.floor(y * rows.length), Math.floor(x * COUNT));
}

function buildPicture() {
  byId("picture").append(heat, cross);
  cross.addEventListener("pointerdown", pointAt);
  cross.addEventListener("pointermove", (event) => {
    if (event.buttons) pointAt(event);
  });
  cross.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    if (event.altKey || event.ctrlKey || event.metaKey || !(event.key in moves)) return;
    event.preventDefault();
    moveTo(state.row + moves[event.key][0], state.key + moves[event.key][1]);
  });
  byId("ribbon").append(...tokens.map((token, j) => make("span", { "data-j": j, title: `token ${j}` }, token)));
  byId("ribbon").addEventListener("click", (event) => {
    const j = Number(event.target.dataset.j);
    if (!Number.isInteger(j)) return;
    const near = rows.reduce((best, row, at) => (Math.abs(row - j) < Math.abs(rows[best] - j) ? at : best), 0);
    moveTo(near, state.key);
  });
}

const strength = (x) => SCALES[state.scale].forward(Math.min(1, Math.abs(x) / top99));
const shade = (x) => colourOf(x < 0 ? palette().more : palette().weight, strength(x));

function drawPicture() {
  const found = weightsOf(state.layer, state.head);
  const sizes = found.flatMap((row) => Array.from(row, Math.abs)).sort((a, b) => a - b);
  top99 = sizes[Math.floor(0.995 * (sizes.length - 1))] || 1;
  const width = byId("picture").clientWidth;
  const side = width - EDGE.left - EDGE.right;
  const height = Math.max(160, Math.round(side * Math.min(1, rows.length / Math.min(COUNT, 96)))) + EDGE.top + EDGE.bottom;
  for (const canvas of [heat, cross]) canvas.style.aspectRatio = `${width} / ${height}`;
  const context = canvasOf(heat, width, height);
  const colours = palette();
  const image = new ImageData(COUNT, rows.length);
  found.forEach((row, i) => {
    for (let j = 0; j < COUNT; j += 1) {
      const at = 4 * (i * COUNT + j);
      const place = 3 * Math.round(255 * strength(row[j] ?? 0));
      const table = row[j] < 0 ? colours.more : colours.weight;
      image.data.set(j < row.length ? table.subarray(place, place + 3) : colours.outside, at);
      image.data[at + 3] = 255;
    }
  });
  const small = make("canvas", { width: COUNT, height: rows.length });
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, EDGE.left, EDGE.top, side, height - EDGE.top - EDGE.bottom);
  drawTokens(context, side, height - EDGE.top - EDGE.bottom);
  byId("weights-title").textContent = `Weights of ${headName(state.layer, state.head)}: ${layers[state.layer].operator}`;
  cross.setAttribute("aria-label", `Weights of ${headName(state.layer, state.head)}. Arrow keys move the crosshair.`);
  drawQuery();
}

// Tokens beside the picture, as many as have room.
function drawTokens(context, side, height) {
  context.strokeStyle = colourFor(context, "--line-strong");
  context.strokeRect(EDGE.left - 0.5, EDGE.top - 0.5, side + 1, height + 1);
  context.fillStyle = colourFor(context, "--soft");
  context.font = font(11);
  const down = Math.max(1, Math.ceil((13 * rows.length) / height));
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let i = 0; i < rows.length; i += down) {
    context.fillText(clipped(context, tokens[rows[i]]), EDGE.left - 6, EDGE.top + ((i + 0.5) / rows.length) * height);
  }
  const across = Math.max(1, Math.ceil((26 * COUNT) / side));
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let j = 0; j < COUNT; j += across) {
    context.fillText(clipped(context, tokens[j], 24), EDGE.left + ((j + 0.5) / COUNT) * side, EDGE.top + height + 7);
  }
}

function clipped(context, token, room = EDGE.left - 8) {
  let text = visibleText(token);
  while (text.length > 1 && context.measureText(text).width > room) text = text.slice(0, -1);
  return text;
}

function drawQuery() {
  const width = byId("picture").clientWidth;
  const side = width - EDGE.left - EDGE.right;
  const height = heat.getBoundingClientRect().height || side;
  const context = canvasOf(cross, width, height);
  const inner = height - EDGE.top - EDGE.bottom;
  const x = EDGE.left + ((state.key + 0.5) / COUNT) * side;
  const y = EDGE.top + ((state.row + 0.5) / rows.length) * inner;
  context.fillStyle = colourFor(context, "--accent");
  context.globalAlpha = 0.6;
  context.fillRect(EDGE.left, y - 0.5, side, 1);
  context.fillRect(x - 0.5, EDGE.top, 1, inner);
  drawFound();
}

function drawFound() {
  const row = weightsOf(state.layer, state.head)[state.row];
  const query = rows[state.row];
  byId("query-title").replaceChildren("What ", make("bdi", { class: "token" }, `“${visibleText(tokens[query])}”`), ` (token ${query}) finds`);
  const item = (name, text) => make("div", {}, make("dt", {}, name), make("dd", {}, text));
  const weight = row[state.key];
  byId("readout").replaceChildren(
    item("key", `${state.key} ${visibleText(tokens[state.key])}`),
    item("distance", whole(query - state.key)),
    item("weight", weight === undefined ? "after the query" : short(weight)),
  );
  const best = Array.from(row, (x, j) => [x, j]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, FOUND);
  const most = Math.abs(best[0][0]) || 1;
  byId("found-table").replaceChildren(
    make("tbody", {}, ...best.map(([x, j]) => {
      const bar = make("span", { class: "bar" });
      bar.style.width = `${Math.max(2, (100 * Math.abs(x)) / most)}%`;
      bar.style.backgroundColor = colourOf(x < 0 ? palette().more : palette().weight, 0.55);
      return make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, visibleText(tokens[j]))), make("td", {}, j === query ? "itself" : `${whole(Math.abs(query - j))} ${j < query ? "back" : "ahead"}`), make("td", {}, percent(Math.abs(x)).replace(/^/, x < 0 ? "−" : "")), make("td", {}, bar));
    })),
  );
  [...byId("ribbon").children].forEach((span, j) => {
    const t = j < row.length ? strength(row[j]) : 0;
    span.style.backgroundColor = t > 0.02 ? shade(row[j]) : "";
    span.classList.toggle("inverse", t > 0.5);
    span.classList.toggle("query", j === query);
    span.classList.toggle("unseen", j >= row.length);
  });
}
