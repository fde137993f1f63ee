// Heads as squares, one row per layer; a stronger colour means a larger error.

function layMosaic(host, layers, heads, cell) {
  const label = (text, place = "") => make("span", { class: `mosaic-label${place}`, "aria-hidden": "true" }, text);
  host.style.setProperty("--columns", heads.length);
  host.style.setProperty("--largest", layers.length > 12 ? "22px" : "34px"); // so that it fits a screen
  host.replaceChildren(
    label(""),
    ...heads.map((head) => label(String(head), " top")),
    ...layers.flatMap((layer, l) => [label(`layer ${layer}`), ...heads.map((_, h) => cell(l, h))]),
  );
}

const errorColour = (error) => colourOf(palette().weight, 0.04 + 0.86 * Math.min(1, error));

function paintCell(cell, layer, head, error) {
  const words = `layer ${layer}, head ${head}: output error ${short(error)}`;
  cell.style.backgroundColor = Number.isNaN(error) ? "" : errorColour(error);
  cell.classList.toggle("missing", Number.isNaN(error));
  cell.setAttribute("aria-label", words);
  cell.title = words;
  return cell;
}
