// The layers, heads and weights of the file, and what is chosen.

const { tokens, rows, causal, layers, measures, pictures } = values;
const COUNT = tokens.length;
const HEADS = Math.max(...layers.map((layer) => layer.heads.length));
const OPERATORS = [...new Set(layers.map((layer) => layer.operator))];
const KINDS = ["associative", "recency", "local", "unused"];
const WRITE = { percent, number: (x) => short(x, 3) };

offer({ scale: ["root", "linear", "log"] });
Object.assign(state, { layer: 0, head: 0, row: rows.length - 1, key: COUNT - 1, measure: measures[0].name });

const every = layers.flatMap((layer, l) => layer.heads.map((head, h) => ({ layer, head, l, h })));
// At first, the linear head that reaches furthest: the pictures of local heads are mere diagonals.
const furthest = every.filter(({ layer }) => layer.operator !== "softmax").reduce((best, one) => (!best || number(one.head.reach_most) > number(best.head.reach_most) ? one : best), null);
if (furthest) Object.assign(state, { layer: furthest.l, head: furthest.h });
const valueOf = (head, name) => number(head[name]);
const headName = (l, h) => (layers[l].heads.length > 1 ? `layer ${l}, head ${h}` : `layer ${l}`);

// The weights of a head, one array for each row; tokens after the query have none.
const remembered = new Map();
function weightsOf(l, h) {
  const key = `${l} ${h}`;
  if (!remembered.has(key)) {
    const all = float16(pictures[l][h]);
    let at = 0;
    remembered.set(key, rows.map((row) => {
      const end = causal ? row + 1 : COUNT;
      at += end;
      return all.subarray(at - end, at);
    }));
  }
  return remembered.get(key);
}

const clamp = (x, most) => Math.min(most, Math.max(0, x));

view.parts = () => ({ layer: state.layer, head: state.head, row: state.row, key: state.key, measure: state.measure });
view.read = (given) => {
  const whole = (name, most) => (given.has(name) && Number.isInteger(Number(given.get(name))) ? clamp(Number(given.get(name)), most) : state[name]);
  state.layer = whole("layer", layers.length - 1);
  state.head = whole("head", layers[state.layer].heads.length - 1);
  state.row = whole("row", rows.length - 1);
  state.key = Math.min(whole("key", COUNT - 1), causal ? rows[state.row] : COUNT - 1);
  if (measures.some((each) => each.name === given.get("measure"))) state.measure = given.get("measure");
};

function choose(l, h) {
  state.layer = clamp(l, layers.length - 1);
  state.head = clamp(h, layers[state.layer].heads.length - 1);
  view.draw();
  writeAddress();
}
