// What the formulas of the feature maps are made of. The formulas themselves are declared by the maps
// (FeatureMap.script) and stand in MAPS, by name: φ(x, parameters, n, d, projection) turns n tokens of
// width d, row after row, into {values, m, log} with φ(x) = values · exp(log). `log` has one number per
// token, so that no exponential overflows, or is null.

const plainFeatures = (values, m) => ({ values, m, log: null });

function elementwise(f) {
  return (x, parameters, n, d) => plainFeatures(x.map(f), d);
}

function relu(x) {
  return Math.max(0, x);
}

// exp of n·m numbers; the largest of each token is taken out, and `shift` (n) is added.
function exponentials(exponents, n, m, shift = null) {
  const values = new Float64Array(n * m);
  const log = new Float64Array(n);
  for (let i = 0; i < n; i += 1) {
    let top = -Infinity;
    for (let c = 0; c < m; c += 1) top = Math.max(top, exponents[i * m + c]);
    for (let c = 0; c < m; c += 1) values[i * m + c] = Math.exp(exponents[i * m + c] - top);
    log[i] = top + (shift ? shift[i] : 0);
  }
  return { values, m, log };
}

// Every run of `width` numbers, divided by its sum.
function shares(values, width) {
  const out = new Float64Array(values.length);
  for (let start = 0; start < values.length; start += width) {
    let total = 0;
    for (let c = start; c < start + width; c += 1) total += values[c];
    for (let c = start; c < start + width; c += 1) out[c] = values[c] / total;
  }
  return out;
}

// x (n, d) times the rows of a matrix (rows, d).
function project(x, matrix, n, d) {
  const rows = matrix.length / d;
  const out = new Float64Array(n * rows);
  for (let i = 0; i < n; i += 1) {
    for (let r = 0; r < rows; r += 1) {
      let sum = 0;
      for (let c = 0; c < d; c += 1) sum += x[i * d + c] * matrix[r * d + c];
      out[i * rows + r] = sum;
    }
  }
  return out;
}

// [f(x), g(x)] along the features, of n tokens of width m.
function paired(x, n, m, f, g) {
  const out = new Float64Array(2 * n * m);
  for (let i = 0; i < n; i += 1) {
    for (let c = 0; c < m; c += 1) {
      out[2 * i * m + c] = f(x[i * m + c], i);
      out[2 * i * m + m + c] = g(x[i * m + c], i);
    }
  }
  return out;
}

const mirrored = (x, n, m) => paired(x, n, m, (y) => y, (y) => -y);

// ‖x‖²/2 of every token.
function halfNorms(x, n, d) {
  const out = new Float64Array(n);
  for (let i = 0; i < n; i += 1) {
    for (let c = 0; c < d; c += 1) out[i] += (x[i * d + c] * x[i * d + c]) / 2;
  }
  return out;
}
