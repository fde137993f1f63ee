// What every page has: a header, choices that are kept in the URL so that a view can be linked, colours,
// and charts that are redrawn when a choice, the width or the medium changes.

const CHOICES = { theme: ["auto", "light", "dark"] }; // by name, the default first
const state = { theme: "auto" };

// What a page adds: `draw` draws it; `read` and `parts` keep its own state in the URL.
const view = { draw() {}, read() {}, parts: () => ({}) };

const wantsDark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function offer(choices) {
  for (const [name, allowed] of Object.entries(choices)) {
    CHOICES[name] = allowed;
    state[name] = allowed[0];
  }
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, allowed] of Object.entries(CHOICES)) {
    if (allowed.includes(given.get(name))) state[name] = given.get(name);
  }
  view.read(given);
}

function address() {
  const parts = new URLSearchParams(view.parts());
  for (const [name, [usual]] of Object.entries(CHOICES)) {
    if (state[name] !== usual) parts.set(name, state[name]);
  }
  return `#${parts}`;
}

let writing = 0;
function writeAddress() {
  clearTimeout(writing); // browsers limit the number of changes per second, and hovering makes many
  writing = setTimeout(() => {
    if (location.hash !== address()) history.replaceState(null, "", address());
  }, 150);
}

function palette() {
  const dark = state.theme === "dark" || (state.theme === "auto" && wantsDark.matches);
  return RAMPS[dark && !printing ? "dark" : "light"];
}

const term = (name, text, attributes = {}) => make("div", attributes, make("dt", {}, name), make("dd", {}, text));

function fillHeader({ source = "", told, findings = [], facts, notes = [], colophon }) {
  byId("source").textContent = source;
  byId("told").textContent = told;
  byId("findings").append(...findings.map((finding) => make("li", {}, finding)));
  byId("facts").append(...facts.map(([name, text]) => term(name, String(text))));
  byId("notes").append(...notes.map((note) => make("li", {}, note)));
  byId("colophon").textContent = `Made by kerneltrick ${values.version}. ${colophon}`;
}

// A group of radio buttons that looks like one control, for one of the choices.
function segmented(id, name, labels, drawChoice) {
  CHOICES[name].forEach((value, at) => {
    const input = make("input", { type: "radio", name, value });
    input.addEventListener("change", () => {
      state[name] = value;
      drawChoice();
      writeAddress();
    });
    byId(id).append(make("label", {}, input, make("span", {}, labels[at])));
  });
}

function redraw() {
  byId("theme-name").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[state.theme];
  byId("theme").setAttribute("aria-label", `Colours: ${state.theme === "auto" ? "follow the system" : state.theme}`);
  document.documentElement.dataset.theme = printing ? "light" : state.theme;
  for (const input of document.querySelectorAll("input[type=radio]")) {
    if (input.name in CHOICES) input.checked = input.value === state[input.name];
  }
  view.draw();
}

// Before printing, the page still has the width of the screen, so the width of the paper is given here.
function roomOf(host) {
  if (!printing) return host.clientWidth;
  return host.closest(".trio") ? 280 : host.closest(".pair") ? 340 : 700;
}

function show() {
  byId("theme").addEventListener("click", () => {
    state.theme = CHOICES.theme[(CHOICES.theme.indexOf(state.theme) + 1) % 3];
    redraw();
    writeAddress();
  });
  wantsDark.addEventListener("change", redraw);
  addEventListener("hashchange", () => {
    readAddress();
    redraw();
  });
  for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      printing = on;
      redraw();
    });
  }
  redraw();
  let width = byId("main").clientWidth;
  new ResizeObserver(() => {
    if (byId("main").clientWidth === width) return;
    width = byId("main").clientWidth;
    redraw();
  }).observe(byId("main"));
}
