// What is shown, kept in the address so that a view can be linked.

const state = { map: 0, layer: 0, head: 0, i: 0, j: 0, scale: "linear", theme: "auto", cost: "time", error: "output", curve: "output" };

const CHOICES = {
  scale: ["linear", "root", "log"],
  theme: ["auto", "light", "dark"],
  cost: ["time", "memory"],
  error: ["output", "mse"],
  curve: ["output", "mse"],
};

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const pick = (name, list) => {
    const at = list.findIndex((item) => String(item) === given.get(name));
    if (at >= 0) state[name] = at;
  };
  pick("map", maps.map((map) => map.map));
  pick("layer", LAYERS);
  pick("head", HEADS);
  for (const name of ["i", "j"]) {
    if (/^\d+$/.test(given.get(name) || "")) state[name] = Math.min(N - 1, Number(given.get(name)));
  }
  for (const [name, allowed] of Object.entries(CHOICES)) {
    if (allowed.includes(given.get(name))) state[name] = given.get(name);
  }
}

function address() {
  const parts = new URLSearchParams({ map: maps[state.map].map, layer: LAYERS[state.layer], head: HEADS[state.head], i: state.i, j: state.j });
  const defaults = { scale: "linear", theme: "auto", cost: "time", error: "output", curve: "output" };
  for (const [name, usual] of Object.entries(defaults)) {
    if (state[name] !== usual) parts.set(name, state[name]);
  }
  return `#${parts}`;
}

let writing = 0;
function writeAddress() {
  clearTimeout(writing); // browsers refuse many changes a second, and hovering makes many
  writing = setTimeout(() => {
    if (location.hash !== address()) history.replaceState(null, "", address());
  }, 150);
}

function palette() {
  const dark = state.theme === "dark" || (state.theme === "auto" && wantsDark.matches);
  return RAMPS[dark && !printing ? "dark" : "light"];
}
