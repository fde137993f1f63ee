// The weights of softmax and of every map, from the queries and keys in the file.

function binary(base64) {
  const text = atob(base64);
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) raw[i] = text.charCodeAt(i);
  return new DataView(raw.buffer);
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function float16(base64) {
  const view = binary(base64);
  return Float64Array.from({ length: view.byteLength / 2 }, (_, i) => half(view.getUint16(2 * i, true)));
}

function float32(base64) {
  const view = binary(base64);
  return Float64Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

const picture = comparison.picture;
const N = picture.tokens;
const D = comparison.data.d;
const LAYERS = comparison.data.layers;
const HEADS = comparison.data.heads;
const CAUSAL = comparison.data.causal;
const queries = float16(picture.q);
const keys = float16(picture.k);
const entries = maps.map((map) => picture.maps.find((entry) => entry.map === map.map) || null);

// Shared key heads: query head h uses key head h // (H/H_kv).
function tokensOf(array, heads, layer, head) {
  const start = (layer * heads + head) * N * D;
  return array.subarray(start, start + N * D);
}

function queriesAndKeys(layer, head) {
  const shared = HEADS.length / comparison.data.kv_heads;
  return [
    tokensOf(queries, HEADS.length, layer, head),
    tokensOf(keys, comparison.data.kv_heads, layer, Math.floor(head / shared)),
  ];
}

// a (n, m) times b (n, m) transposed.
function products(a, b, m) {
  const out = new Float64Array(N * N);
  for (let i = 0; i < N; i += 1) {
    for (let j = 0; j < N; j += 1) {
      let sum = 0;
      for (let c = 0; c < m; c += 1) sum += a[i * m + c] * b[j * m + c];
      out[i * N + j] = sum;
    }
  }
  return out;
}

// Features (n, m) as {values, m, log}: φ(x) = values · exp(log), log per token or null, so that
// no exponential overflows.
function exponentials(exponents, m, shift = null) {
  const values = new Float64Array(N * m);
  const log = new Float64Array(N);
  for (let i = 0; i < N; i += 1) {
    let top = -Infinity;
    for (let c = 0; c < m; c += 1) top = Math.max(top, exponents[i * m + c]);
    for (let c = 0; c < m; c += 1) values[i * m + c] = Math.exp(exponents[i * m + c] - top);
    log[i] = top + (shift ? shift[i] : 0);
  }
  return { values, m, log };
}

function project(x, matrix) {
  const rows = matrix.length / D;
  const out = new Float64Array(N * rows);
  for (let i = 0; i < N; i += 1) {
    for (let r = 0; r < rows; r += 1) {
      let sum = 0;
      for (let c = 0; c < D; c += 1) sum += x[i * D + c] * matrix[r * D + c];
      out[i * rows + r] = sum;
    }
  }
  return out;
}

// [x, −x] along the features.
function mirrored(x, m) {
  const out = new Float64Array(2 * N * m);
  for (let i = 0; i < N; i += 1) {
    for (let c = 0; c < m; c += 1) {
      out[2 * i * m + c] = x[i * m + c];
      out[2 * i * m + m + c] = -x[i * m + c];
    }
  }
  return out;
}

function halfNorms(x) {
  const out = new Float64Array(N);
  for (let i = 0; i < N; i += 1) {
    for (let c = 0; c < D; c += 1) out[i] += (x[i * D + c] * x[i * D + c]) / 2;
  }
  return out;
}

function favor(x, parameters, projection) {
  const projected = project(x, projection);
  const draws = projection.length / D;
  // Features are divided by the root of their number, which matters beside exact weights.
  const count = parameters.kind === "hyperbolic" ? 2 * draws : draws;
  const norms = halfNorms(x);
  if (parameters.kind === "trig") {
    const values = new Float64Array(2 * N * draws);
    for (let i = 0; i < N; i += 1) {
      for (let c = 0; c < draws; c += 1) {
        values[2 * i * draws + c] = Math.cos(projected[i * draws + c]);
        values[2 * i * draws + draws + c] = Math.sin(projected[i * draws + c]);
      }
    }
    return { values, m: 2 * draws, log: norms.map((x) => x - Math.log(count) / 2) };
  }
  const shift = norms.map((x) => -x - Math.log(count) / 2);
  if (parameters.kind === "hyperbolic") return exponentials(mirrored(projected, draws), 2 * draws, shift);
  return exponentials(projected, draws, shift);
}

function hedgehog(x, parameters) {
  const result = exponentials(mirrored(x, D), 2 * D);
  if (parameters.activation === "exp") return result;
  const width = parameters.separate ? D : 2 * D; // of what adds up to 1
  for (let start = 0; start < 2 * N * D; start += width) {
    const row = result.values.subarray(start, start + width);
    const total = row.reduce((a, b) => a + b, 0);
    row.forEach((value, c) => (row[c] = value / total));
  }
  return { ...result, log: null };
}

const elementwise = (f) => (x) => ({ values: x.map(f), m: D, log: null });
const relu = (x) => Math.max(0, x);

const FEATURES = {
  identity: elementwise((x) => x),
  elu: elementwise((x) => Math.exp(Math.min(x, 0)) + Math.max(x, 0)),
  relu: elementwise(relu),
  relu2: elementwise((x) => relu(x) ** 2),
  square: elementwise((x) => x * x),
  exp: (x) => exponentials(x, D),
  cosformer: elementwise(relu),
  favor,
  hedgehog,
  softmax: () => ({ values: new Float64Array(0), m: 0, log: null }), // no features: far tokens weigh nothing
  ...declaredMaps(relu),
  t2r: (x, parameters, projection) => ({ values: project(x, projection).map(relu), m: projection.length / D, log: null }),
};

// Exact maps need no features: their kernel is a polynomial in t = q·k.
const KERNELS = {
  poly: (t, { degree, constant = 1 }) => (t + constant) ** degree,
  taylor: (t, { order }) => {
    let total = 1;
    for (let r = order; r > 0; r -= 1) total = 1 + (t / r) * total;
    return total;
  },
};

function similarities(entry, q, k) {
  const parameters = entry.parameters || {};
  if (entry.name in KERNELS) {
    return { values: products(q, k, D).map((t) => KERNELS[entry.name](t, parameters)), log: null };
  }
  const projection = entry.projection ? float32(entry.projection) : null;
  const phiQ = FEATURES[entry.name](q, parameters, projection);
  const phiK = FEATURES[entry.name](k, parameters, projection);
  const values = products(phiQ.values, phiK.values, phiQ.m);
  if (entry.name === "cosformer") {
    const step = Math.PI / (2 * parameters.horizon);
    values.forEach((value, at) => (values[at] = value * Math.cos((Math.floor(at / N) - (at % N)) * step)));
  }
  return { values, log: phiK.log, queryLog: phiQ.log };
}

// Near keys weigh as in softmax, the others by the map, in one unit a row; see linear_attention.
function joined({ values, log, queryLog }, entry, scores) {
  const whole = entry.name === "softmax" && !(entry.window || entry.sinks);
  const out = new Float64Array(N * N);
  for (let i = 0; i < N; i += 1) {
    const seen = CAUSAL ? i + 1 : N;
    const near = (j) => whole || Math.abs(i - j) < entry.window || j < entry.sinks;
    let top = -Infinity;
    for (let j = 0; j < seen; j += 1) if (near(j)) top = Math.max(top, scores[i * N + j]);
    const unit = entry.gain + (queryLog ? queryLog[i] : 0) + (entry.relative && top > -Infinity ? top : 0);
    const exponent = (j) => (near(j) ? scores[i * N + j] : values[i * N + j] === 0 ? -Infinity : unit + (log ? log[j] : 0));
    let reference = -Infinity;
    for (let j = 0; j < seen; j += 1) reference = Math.max(reference, exponent(j));
    for (let j = 0; j < seen; j += 1) {
      const size = exponent(j) === -Infinity ? 0 : Math.exp(exponent(j) - reference);
      out[i * N + j] = (near(j) ? 1 : values[i * N + j]) * size;
    }
  }
  return { values: out, log: null };
}

// Rows over their sums; each row with its own maximum of the log-scales taken out, and without the
// log-scale of the query, which cancels.
function normalized({ values, log }) {
  const out = new Float64Array(N * N);
  for (let i = 0; i < N; i += 1) {
    const seen = CAUSAL ? i + 1 : N;
    let top = 0;
    if (log) {
      top = -Infinity;
      for (let j = 0; j < seen; j += 1) top = Math.max(top, log[j]);
    }
    let total = 0;
    for (let j = 0; j < seen; j += 1) {
      out[i * N + j] = values[i * N + j] * (log ? Math.exp(log[j] - top) : 1);
      total += out[i * N + j];
    }
    for (let j = 0; j < seen; j += 1) out[i * N + j] = total === 0 ? NaN : out[i * N + j] / total;
  }
  return out;
}

function softmaxWeights(layer, head) {
  const [q, k] = queriesAndKeys(layer, head);
  const scores = products(q, k, D);
  const out = new Float64Array(N * N);
  for (let i = 0; i < N; i += 1) {
    const seen = CAUSAL ? i + 1 : N;
    const row = scores.subarray(i * N, i * N + seen).map((x) => x * comparison.data.scale);
    const top = row.reduce((a, b) => Math.max(a, b), -Infinity);
    row.forEach((x, j) => (out[i * N + j] = Math.exp(x - top)));
    const total = out.subarray(i * N, i * N + seen).reduce((a, b) => a + b, 0);
    for (let j = 0; j < seen; j += 1) out[i * N + j] /= total;
  }
  return out;
}

// null where the file does not hold what the map needs (a function of the user, learned weights).
function mapWeights(layer, head, map) {
  const entry = entries[map];
  const needs = ["favor", "t2r"];
  if (!entry || !(entry.name in FEATURES || entry.name in KERNELS)) return null;
  if (needs.includes(entry.name) && !entry.projection) return null;
  const root = Math.sqrt(entry.scale);
  const [q, k] = queriesAndKeys(layer, head).map((x) => x.map((value) => value * root));
  const similar = similarities(entry, q, k);
  if (!(entry.window || entry.sinks || entry.name === "softmax")) return normalized(similar);
  const [plainQ, plainK] = queriesAndKeys(layer, head);
  return normalized(joined(similar, entry, products(plainQ, plainK, D).map((x) => x * comparison.data.scale)));
}

const remembered = new Map();

function weights(layer, head, map = null) {
  const key = `${layer} ${head} ${map}`;
  if (!remembered.has(key)) {
    if (remembered.size > 64) remembered.clear();
    remembered.set(key, map === null ? softmaxWeights(layer, head) : mapWeights(layer, head, map));
  }
  return remembered.get(key);
}
