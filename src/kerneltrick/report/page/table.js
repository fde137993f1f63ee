// Tables that can be sorted by any column. The first column names the row (`text`); rows that are not
// `fixed` can be selected. A column may have `more` to say after its value.

const sorting = {}; // by table: the key of a column, and 1 or −1

function sorted(rows, column, direction) {
  return [...rows].sort((a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // "–" last
    return x === y ? 0 : (x < y ? -1 : 1) * direction;
  });
}

function headerCell(column, name, redrawTable) {
  const order = sorting[name];
  const active = order.key === column.key;
  const direction = order.direction > 0 ? "ascending" : "descending";
  const button = make("button", { type: "button", title: column.help, "data-key": column.key }, column.label);
  button.addEventListener("click", () => {
    sorting[name] = { key: column.key, direction: active ? -order.direction : 1 };
    redrawTable();
    byId(`${name}-table`).querySelector(`thead [data-key="${column.key}"]`).focus();
  });
  return make("th", { scope: "col", "aria-sort": active ? direction : "none" }, button);
}

function bodyCell(column, row, longest) {
  if (column.text && row.fixed) return make("th", { scope: "row", title: row.help }, column.text(row));
  if (column.text) return make("th", { scope: "row" }, make("button", { type: "button" }, column.text(row)));
  const value = column.of(row);
  const cell = make("td", { "data-key": column.key, title: Number.isFinite(value) ? String(value) : null }, column.write(value) + (column.more ? column.more(row) : ""));
  if (column.bar && Number.isFinite(value)) {
    cell.classList.add("bar-cell");
    cell.style.setProperty("--share", String(Math.min(1, value / longest)));
  }
  return cell;
}

function drawTable(name, columns, rows, isChosen = () => false, choose = null) {
  sorting[name] ??= { key: columns[0].key, direction: 1 };
  const table = byId(`${name}-table`);
  const column = columns.find((c) => c.key === sorting[name].key);
  const barred = columns.find((c) => c.bar);
  const lengths = barred ? rows.map(barred.of).filter(Number.isFinite) : [];
  const longest = Math.min(1.5, Math.max(1e-9, ...lengths)); // a bar is never longer than its cell
  const redrawTable = () => drawTable(name, columns, rows, isChosen, choose);
  const head = make("thead", {}, make("tr", {}, ...columns.map((c) => headerCell(c, name, redrawTable))));
  const body = make("tbody");
  for (const row of sorted(rows, column, sorting[name].direction)) {
    const line = make("tr", { "aria-current": isChosen(row) ? "true" : null }, ...columns.map((c) => bodyCell(c, row, longest)));
    if (!row.fixed) line.addEventListener("click", () => choose(row));
    body.append(line);
  }
  const focused = table.contains(document.activeElement) && document.activeElement.closest("tbody");
  table.replaceChildren(head, body);
  if (focused) table.querySelector("tr[aria-current] button")?.focus();
}
