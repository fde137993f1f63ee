// The tables: all maps, and every head of the chosen map.

const METRICS = [
  ["output_error", "output error", short, "‖O − O_softmax‖ / ‖O_softmax‖; of many heads the mean"],
  ["whole_error", "whole", short, "the same of all heads' outputs together, so that large ones count for more"],
  ["output_cosine", "cosine", short, "mean cosine of the outputs with those of softmax"],
  ["mse", "MSE", short, "mean squared error of the weights"],
  ["times_limit", "× limit", times, "the MSE over the least that any map with as many features can have"],
  ["kl", "KL", short, "KL(softmax ‖ map); – with negative weights, ∞ at a zero weight"],
  ["total_variation", "TV", short, "total variation between the rows"],
  ["top1_agreement", "top-1", percent, "how often both put the most weight on the same token"],
  ["top8_agreement", "top-8", percent, "how much of the eight strongest tokens both share"],
  ["correlation", "corr.", short, "Pearson correlation of the weights"],
  ["rank_correlation", "rank corr.", short, "do larger softmax weights get larger weights?"],
  ["condition_number", "condition", short, "Σ|A| / |ΣA|: 1 is safe, large means that the sum cancels"],
  ["negative_fraction", "negative", percent, "share of negative weights"],
  ["undefined_rows", "undefined", whole, "rows whose weights add up to zero"],
  ["float32_error", "float32", short, "output error of float32 against float64"],
  ["gradient_ratio", "gradient", short, "gradient norm over that of softmax"],
  ["dead_gradients", "dead", percent, "share of entries that get no gradient"],
];

const metricColumns = METRICS.map(([key, label, write, help]) => ({ key, label, write, help, bar: key === "output_error", of: (row) => number((row.metrics || {})[key]) }));

const MAP_COLUMNS = [
  { key: "map", label: "map", text: (row) => (row.fixed ? "uniform" : labels[row.at]), of: (row) => row.at },
  { key: "features", label: "m", write: whole, help: "features", of: (row) => number(row.map.features) },
  { key: "ms_per_1000_tokens", label: "ms / 1000", write: short, help: "milliseconds for 1000 tokens, one layer, all heads", of: (row) => number(row.map.ms_per_1000_tokens) },
  { key: "state_bytes", label: "state", write: bytes, help: "memory of one layer, all heads", of: (row) => number(row.map.state_bytes) },
  ...metricColumns,
];

const softmaxColumn = (key, label, write, help) => ({ key, label, write, help, of: (row) => number((row.softmax || {})[key]) });
const HEAD_COLUMNS = [
  { key: "head", label: "head", text: (row) => `${LAYERS[row.layer]}.${HEADS[row.head]}`, of: (row) => row.layer * HEADS.length + row.head },
  softmaxColumn("entropy", "entropy", short, "of the softmax rows, in nats; low is peaked"),
  softmaxColumn("effective_rank", "eff. rank", short, "effective rank of the softmax weights"),
  softmaxColumn("top1_weight", "top weight", short, "mean of the largest softmax weight of a row"),
  ...metricColumns,
];

sorting.maps = { key: "output_error", direction: 1 };

function drawMapsTable() {
  const nothing = { at: -1, map: uniform, metrics: uniform.summary, fixed: true, help: "every token weighs the same" };
  const rows = [nothing, ...maps.map((map, at) => ({ at, map, metrics: map.summary }))];
  drawTable("maps", MAP_COLUMNS, rows, (row) => row.at === state.map, (row) => select({ map: row.at }));
}

function drawHeadsTable() {
  const rows = LAYERS.flatMap((_, layer) =>
    HEADS.map((_, head) => ({ layer, head, metrics: maps[state.map].heads[layer][head], softmax: comparison.softmax.heads[layer][head] })),
  );
  byId("heads-title").textContent = `Every head with ${labels[state.map]}`;
  const chosen = (row) => row.layer === state.layer && row.head === state.head;
  drawTable("heads", HEAD_COLUMNS, rows, chosen, (row) => select({ layer: row.layer, head: row.head }));
}
