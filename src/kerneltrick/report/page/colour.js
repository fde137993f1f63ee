// Colour ramps, interpolated in OKLab so that equal steps of weight look like equal steps.

const toLinear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const toGamma = (c) => (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);

function oklab(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => toLinear(parseInt(hex.slice(at, at + 2), 16) / 255));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function rgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((c) => Math.round(255 * Math.min(1, Math.max(0, toGamma(Math.max(0, c))))));
}

// 256 colours; stops are spaced by their distance in OKLab.
function ramp(stops) {
  const points = stops.map(oklab);
  const at = [0];
  for (let i = 1; i < points.length; i += 1) {
    at.push(at[i - 1] + Math.hypot(...points[i].map((x, c) => x - points[i - 1][c])));
  }
  const table = new Uint8ClampedArray(256 * 3);
  for (let step = 0, i = 0; step < 256; step += 1) {
    const target = (step / 255) * at[at.length - 1];
    while (i < points.length - 2 && at[i + 1] < target) i += 1;
    const t = (target - at[i]) / (at[i + 1] - at[i]);
    table.set(rgb(points[i].map((x, c) => x + t * (points[i + 1][c] - x))), 3 * step);
  }
  return table;
}

const RAMPS = {
  light: {
    weight: ramp(["#fafaf7", "#c9ebd6", "#74cdb5", "#38a3a9", "#34749f", "#3d4a86", "#2c2146", "#120a14"]),
    more: ramp(["#fafaf7", "#f7cfa9", "#e88a4d", "#bb4a17", "#6d1f06"]),
    less: ramp(["#fafaf7", "#b9d9ea", "#5fa3cc", "#236a9e", "#0d3560"]),
    undefined: [226, 227, 226],
    outside: [241, 241, 238],
  },
  dark: {
    weight: ramp(["#10161a", "#232341", "#3b3f7c", "#37659e", "#348fa7", "#40b7ad", "#8bdab2", "#eafaee"]),
    more: ramp(["#10161a", "#55260f", "#a84a1a", "#ec8a4c", "#fde0c2"]),
    less: ramp(["#10161a", "#12395a", "#246f9f", "#66b1da", "#d8effb"]),
    undefined: [58, 66, 72],
    outside: [21, 28, 33],
  },
};

const colourOf = (table, t) => {
  const at = 3 * Math.round(255 * Math.min(1, Math.max(0, t)));
  return `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
};

// From |weight| / largest to a place on the ramp, and back.
const SCALES = {
  linear: { forward: (x) => x, back: (t) => t },
  root: { forward: (x) => Math.sqrt(x), back: (t) => t * t },
  log: { forward: (x) => Math.max(0, 1 + Math.log10(x) / 4), back: (t) => 10 ** (4 * (t - 1)) },
};
