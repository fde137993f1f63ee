// What is shown of a comparison, in addition to the choices of every page.

const TIMED = maps.some((map) => number(map.ms_per_1000_tokens) > 0);
offer({ scale: ["linear", "root", "log"], cost: TIMED ? ["time", "memory"] : ["memory"], error: ["output", "mse"], curve: ["output", "mse"] });
Object.assign(state, { map: 0, layer: 0, head: 0, i: 0, j: 0 });

view.read = (given) => {
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
};

view.parts = () => ({ map: maps[state.map].map, layer: LAYERS[state.layer], head: HEADS[state.head], i: state.i, j: state.j });
