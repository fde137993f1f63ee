// The maps of a comparison, and how their names are displayed.

const comparison = values;
const metricNamed = (name) => METRICS.find((metric) => metric.name === name); // METRICS is in the page

// "favor:features=256,kind=trig@window=16,sinks=1" → "favor trig 256 + window 16", that of softmax →
// "window 16 alone"; the full text where two would look alike.
function shorten(whole) {
  const [text, near = ""] = whole.split("@");
  if (!near) return shortenMap(text);
  const window = /window=(\d+)/.exec(near);
  const exact = window ? `window ${window[1]}` : near;
  return text === "softmax" ? `${exact} alone` : `${shortenMap(text)} + ${exact}`;
}

function shortenMap(text) {
  const colon = text.indexOf(":");
  if (colon < 0) return text;
  const plain = ["features", "kind", "order", "degree", "horizon", "activation"];
  const parts = text.slice(colon + 1).split(",").map((part) => {
    const [key, value] = part.split("=");
    return plain.includes(key) && value !== undefined ? [key === "kind" ? 0 : 1, value] : [2, part];
  });
  return [text.slice(0, colon), ...parts.sort((a, b) => a[0] - b[0]).map((part) => part[1])].join(" ");
}

const maps = comparison.maps;
const uniform = comparison.uniform; // the baseline: the same weight for every token
const labels = (() => {
  const shorts = maps.map((map) => shorten(map.map));
  const unique = shorts.map((label, i) => (shorts.indexOf(label) === shorts.lastIndexOf(label) ? label : maps[i].map));
  return unique.map((label) => (label.length > 40 ? `${label.slice(0, 39)}…` : label));
})();

// For long data the limit is an estimate, and everything that shows it says so.
const ESTIMATED = maps.some((map) => map.summary.limit_kind === "estimate");
