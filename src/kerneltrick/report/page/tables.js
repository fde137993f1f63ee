// Tables that sort: all maps, and every head of the chosen map.

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

const metricColumns = METRICS.map(([key, label, write, help]) => ({ key, label, write, help, of: (row) => number((row.metrics || {})[key]) }));

const MAP_COLUMNS = [
  { key: "map", label: "map", text: (row) => (row.map === uniform ? "uniform" : labels[row.at]), of: (row) => row.at },
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

const sorting = { maps: { key: "output_error", direction: 1 }, heads: { key: "head", direction: 1 } };

function sorted(rows, column, direction) {
  return [...rows].sort((a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // "–" last
    return x === y ? 0 : (x < y ? -1 : 1) * direction;
  });
}

function headerCell(column, name, redraw) {
  const order = sorting[name];
  const active = order.key === column.key;
  const direction = order.direction > 0 ? "ascending" : "descending";
  const button = make("button", { type: "button", title: column.help, "data-key": column.key }, column.label);
  button.addEventListener("click", () => {
    sorting[name] = { key: column.key, direction: active ? -order.direction : 1 };
    redraw();
    byId(`${name}-table`).querySelector(`thead [data-key="${column.key}"]`).focus();
  });
  return make("th", { scope: "col", "aria-sort": active ? direction : "none" }, button);
}

function bodyCell(column, row, bars) {
  if (column.text && row.map === uniform) return make("th", { scope: "row", title: "every token weighs the same" }, column.text(row));
  if (column.text) return make("th", { scope: "row" }, make("button", { type: "button" }, column.text(row)));
  const value = column.of(row);
  const cell = make("td", { "data-key": column.key, title: Number.isFinite(value) ? String(value) : null }, column.write(value));
  if (column.key === "output_error" && Number.isFinite(value)) {
    cell.classList.add("bar-cell");
    cell.style.setProperty("--share", String(Math.min(1, value / bars)));
  }
  return cell;
}

function drawTable(name, columns, rows, isChosen, choose, redraw) {
  const table = byId(`${name}-table`);
  const column = columns.find((c) => c.key === sorting[name].key);
  const errors = rows.map((row) => number((row.metrics || {}).output_error)).filter(Number.isFinite);
  const bars = Math.min(1.5, Math.max(1e-9, ...errors)); // a bar is never longer than its cell
  const head = make("thead", {}, make("tr", {}, ...columns.map((c) => headerCell(c, name, redraw))));
  const body = make("tbody");
  for (const row of sorted(rows, column, sorting[name].direction)) {
    const line = make("tr", { "aria-current": isChosen(row) ? "true" : null }, ...columns.map((c) => bodyCell(c, row, bars)));
    if (row.map !== uniform) line.addEventListener("click", () => choose(row));
    body.append(line);
  }
  const focused = table.contains(document.activeElement) && document.activeElement.closest("tbody");
  table.replaceChildren(head, body);
  if (focused) table.querySelector("tr[aria-current] button")?.focus();
}

function drawMapsTable() {
  const rows = [uniform, ...maps].map((map, at) => ({ at: at - 1, map, metrics: map.summary }));
  drawTable("maps", MAP_COLUMNS, rows, (row) => row.at === state.map, (row) => select({ map: row.at }), drawMapsTable);
}

function drawHeadsTable() {
  const rows = LAYERS.flatMap((_, layer) =>
    HEADS.map((_, head) => ({ layer, head, metrics: maps[state.map].heads[layer][head], softmax: comparison.softmax.heads[layer][head] })),
  );
  byId("heads-title").textContent = `Every head with ${labels[state.map]}`;
  const chosen = (row) => row.layer === state.layer && row.head === state.head;
  drawTable("heads", HEAD_COLUMNS, rows, chosen, (row) => select({ layer: row.layer, head: row.head }), drawHeadsTable);
}
