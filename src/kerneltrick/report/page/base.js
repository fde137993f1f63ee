// Shared by all parts: the data, creation of elements, formatting of numbers.

const values = JSON.parse(document.getElementById("data").textContent);
const font = (size) => `${size}px ${getComputedStyle(document.body).fontFamily}`;
const SVG = document.querySelector("svg").namespaceURI;

const byId = (id) => document.getElementById(id);

// Strings become text nodes, so nothing in the data is ever parsed as markup.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// NaN travels as null, infinity as "inf".
function number(value) {
  if (value === null || value === undefined) return NaN;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return Number(value);
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const superscript = (exponent) => [...String(exponent)].map((c) => SUPERSCRIPTS[c]).join("");
const minus = (text) => text.replace("-", "−");

function special(x) {
  if (Number.isNaN(x)) return "–";
  return x > 0 ? "∞" : "−∞";
}

// Three significant digits, powers of ten where zeros would crowd.
function short(x, digits = 3) {
  if (!Number.isFinite(x)) return special(x);
  if (x === 0) return "0";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent < -3 || exponent > 5) return minus(`${mantissa}·10`) + superscript(exponent);
  return minus(x.toFixed(Math.max(0, digits - 1 - exponent)));
}

const percent = (x) => (Number.isFinite(x) ? `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)}\u00a0%` : special(x));
const times = (x) => (Number.isFinite(x) ? `${short(x, 3)}×` : special(x));
const whole = (x) => (Number.isFinite(x) ? String(Math.round(x)).replace(/\B(?=(\d{3})+$)/g, "\u202f") : special(x));

function bytes(x) {
  if (!Number.isFinite(x)) return special(x);
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (x >= 1024 && unit < 3) {
    x /= 1024;
    unit += 1;
  }
  return `${unit ? short(x) : x}\u00a0${units[unit]}`;
}

// Labels for axes: 0.01, 0.65, 1, 100, 10⁻⁵.
function tick(x) {
  if (x === 0) return "0";
  const exponent = Math.floor(Math.log10(x) + 1e-9);
  const lead = Number((x / 10 ** exponent).toPrecision(3));
  if (exponent < -3 || exponent > 4) return (lead === 1 ? "" : `${lead}·`) + "10" + superscript(exponent);
  return exponent < 3 ? String(Number(x.toPrecision(3))) : whole(x);
}
