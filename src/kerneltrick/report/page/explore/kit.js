// Controls, pictures and questions of all chapters.

const usual = {}; // what a control starts with, by its name
const shownBy = {}; // by the name of a control: a function that displays its value

// Draws happen once per frame, however often a control moves.
const waiting = new Set();
const frameTimes = {};
function repaint(drawing) {
  if (!waiting.size) {
    requestAnimationFrame(() => {
      const now = [...waiting];
      waiting.clear();
      for (const each of now) {
        const from = performance.now();
        each();
        frameTimes[each.name] = performance.now() - from;
      }
    });
  }
  waiting.add(drawing);
}

// Draws what would make a frame too long as soon as the control rests.
const timers = new Map();
function later(drawing) {
  clearTimeout(timers.get(drawing));
  timers.set(drawing, setTimeout(() => repaint(drawing), 80));
}

function keep(name, value, display) {
  usual[name] = value;
  state[name] = value;
  shownBy[name] = display;
}

function change(name, value, changed) {
  state[name] = value;
  shownBy[name]();
  changed();
  writeAddress();
}

function slider(host, name, { label, min, max, step = 1, value, format = String, changed }) {
  const input = make("input", { type: "range", id: `control-${name}`, min, max, step });
  const told = make("output", { for: input.id });
  host.append(make("div", { class: "dial-field" }, make("label", { for: input.id }, label), told, input));
  keep(name, value, () => {
    input.value = state[name];
    told.textContent = format(state[name]);
    input.setAttribute("aria-valuetext", told.textContent);
  });
  input.addEventListener("input", () => change(name, Number(input.value), changed));
  return { input, setRange(low, high) {
    [input.min, input.max] = [low, high];
    state[name] = Math.min(high, Math.max(low, state[name]));
    shownBy[name]();
  } };
}

function menu(host, name, { label, options, value = options[0][0], changed }) {
  const select = make("select", { id: `control-${name}` }, ...options.map(([own, text]) => make("option", { value: own }, text)));
  host.append(make("div", { class: "dial-field" }, make("label", { for: select.id }, label), select));
  keep(name, value, () => (select.value = state[name]));
  select.addEventListener("change", () => change(name, select.value, changed));
  return select;
}

function press(host, text, action) {
  const button = make("button", { type: "button", class: "push" }, text);
  button.addEventListener("click", action);
  host.append(button);
  return button;
}

// A button that moves a slider on by itself, from the start if it is at its end.
function player(host, name, { seconds, changed }) {
  let timer = 0;
  const input = byId(`control-${name}`);
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    button.textContent = "Play";
  };
  const button = press(host, "Play", () => {
    if (timer) return stop();
    const last = Number(input.max);
    if (state[name] >= last) change(name, Number(input.min), changed);
    const by = Math.max(1, Math.round(last / (seconds * 20)));
    button.textContent = "Pause";
    timer = setInterval(() => {
      const next = Math.min(Number(input.max), state[name] + by);
      change(name, next, changed);
      if (next >= Number(input.max)) stop();
    }, Math.max(50, (1000 * seconds) / last));
  });
  input.addEventListener("input", stop);
}

function tell(id, entries) {
  byId(id).replaceChildren(...entries.map(([name, text, key]) => term(name, text, { "data-key": key || name })));
}

// Colours of the style, until the theme changes.
let inks = {};
const ink = (context, name) => (inks[name] ??= colourFor(context, name));

// A canvas that fills its parent, with a given height.
function fitted(canvas, width, height) {
  const ratio = `${width} / ${height}`;
  if (canvas.style.aspectRatio !== ratio) canvas.style.aspectRatio = ratio;
  return canvasOf(canvas, width, height);
}

const scratch = {}; // small canvases, one pixel per number

// A table of colours as pixels: red, green, blue, opaque.
const packedTables = new Map();
function packed(table) {
  if (!packedTables.has(table)) {
    const raw = Uint8Array.from({ length: (4 * table.length) / 3 }, (_, at) => (at % 4 === 3 ? 255 : table[3 * Math.floor(at / 4) + (at % 4)]));
    packedTables.set(table, new Uint32Array(raw.buffer));
  }
  return packedTables.get(table);
}

// A matrix as squares of colour. `kind` is weight (orange if negative), or signed (orange and blue).
// A triangle hides what is above the diagonal.
function paint(canvas, numbers, rows, columns, { top, kind = "weight", width = canvas.parentElement.clientWidth, height = (width * rows) / columns, triangle = false }) {
  const colours = palette();
  const [more, less] = (kind === "weight" ? [colours.weight, colours.more] : [colours.more, colours.less]).map(packed);
  const [outside, unknown] = [colours.outside, colours.undefined].map((colour) => packed(colour)[0]);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0, at = 0; i < rows; i += 1) {
    for (let j = 0; j < columns; j += 1, at += 1) {
      const value = numbers[at];
      if (triangle && j > i) pixels[at] = outside;
      else if (value !== value) pixels[at] = unknown;
      else pixels[at] = (value >= 0 ? more : less)[Math.round(255 * Math.min(1, Math.sqrt(Math.abs(value) / top)))];
    }
  }
  const context = fitted(canvas, width, height);
  const small = (scratch[`${rows} ${columns}`] ||= make("canvas", { width: columns, height: rows }).getContext("2d"));
  small.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small.canvas, 0, 0, width, height);
  context.lineWidth = 1;
  context.strokeStyle = ink(context, "--line-strong");
  context.strokeRect(0.5, 0.5, width - 1, height - 1);
  return context;
}

// The 99.5th percentile (of a sample, if there are many), so that one strong entry does not hide the rest.
function strong(numbers) {
  const every = Math.ceil(numbers.length / 1500);
  const sizes = numbers.filter((x, at) => x > 0 && at % every === 0).sort();
  return sizes.length ? sizes[Math.floor(0.995 * (sizes.length - 1))] : 1;
}
