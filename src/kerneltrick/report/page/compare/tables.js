// Two tables: all maps, and all heads of the chosen map.

// The metrics of the data, with how their numbers are written.
const STYLES = { number: short, percent, times, count: whole };
const BETTER = { lower: "Lower is better.", higher: "Higher is better.", none: "" };
const helpOf = ({ formula, meaning, better }) => `${formula}. ${meaning} ${BETTER[better]}`.trim();

const metricColumns = METRICS.filter(({ label }) => label).map((metric) => ({ key: metric.name, label: metric.label, write: STYLES[metric.style], help: helpOf(metric), bar: metric.name === "output_error", of: (row) => number((row.metrics || {})[metric.name]) }));

const MAP_COLUMNS = [
  { key: "map", label: "map", text: (row) => (row.fixed ? "uniform" : labels[row.at]), of: (row) => row.at },
  { key: "features", label: "m", write: whole, help: "number of features", of: (row) => number(row.map.features) },
  { key: "ms_per_1000_tokens", label: "ms / 1000", write: short, help: "milliseconds per 1000 tokens for one layer with all heads", of: (row) => number(row.map.ms_per_1000_tokens) },
  { key: "state_bytes", label: "state", write: bytes, help: "bytes of state for one layer with all heads", of: (row) => number(row.map.state_bytes) },
  ...metricColumns,
];

const softmaxColumn = (key, label, write, help) => ({ key, label, write, help, of: (row) => number((row.softmax || {})[key]) });
const HEAD_COLUMNS = [
  { key: "head", label: "head", text: (row) => `${LAYERS[row.layer]}.${HEADS[row.head]}`, of: (row) => row.layer * HEADS.length + row.head },
  softmaxColumn("entropy", "entropy", short, "mean entropy of the softmax rows, in nats; low means peaked"),
  softmaxColumn("effective_rank", "eff. rank", short, "effective rank of the softmax weights"),
  softmaxColumn("top1_weight", "top weight", short, "mean over rows of the largest softmax weight"),
  ...metricColumns,
];

sorting.maps = { key: "output_error", direction: 1 };

function drawMapsTable() {
  const baseline = { at: -1, map: uniform, metrics: uniform.summary, fixed: true, help: "baseline: the same weight for every token" };
  const rows = [baseline, ...maps.map((map, at) => ({ at, map, metrics: map.summary }))];
  drawTable("maps", MAP_COLUMNS, rows, (row) => row.at === state.map, (row) => select({ map: row.at }));
}

function drawHeadsTable() {
  const rows = LAYERS.flatMap((_, layer) =>
    HEADS.map((_, head) => ({ layer, head, metrics: maps[state.map].heads[layer][head], softmax: comparison.softmax.heads[layer][head] })),
  );
  byId("heads-title").textContent = `All heads with ${labels[state.map]}`;
  const chosen = (row) => row.layer === state.layer && row.head === state.head;
  drawTable("heads", HEAD_COLUMNS, rows, chosen, (row) => select({ layer: row.layer, head: row.head }));
}
