// The weights of softmax and of a feature map. A head is {q, k, n, d, causal, scale}. A setting is
// {name, parameters, scale, projection, window, sinks, gain, relative}, as analysis.picture describes it.

// a (n, m) times b (n, m) transposed.
function products(a, b, n, m) {
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j < n; j += 1) {
      let sum = 0;
      for (let c = 0; c < m; c += 1) sum += a[i * m + c] * b[j * m + c];
      out[i * n + j] = sum;
    }
  }
  return out;
}

// Similarities (n, n) of a map: values · exp(log of the key + queryLog of the query). Exact maps need no
// features: their kernel is a function of q·k. null if the page does not have what the map needs.
function similarities({ q, k, n, d }, setting) {
  const { phi, kernel } = MAPS[setting.name] || {};
  const parameters = setting.parameters || {};
  const root = Math.sqrt(setting.scale);
  const [scaledQ, scaledK] = [q, k].map((x) => x.map((value) => value * root));
  if (kernel) return { values: products(scaledQ, scaledK, n, d).map((t) => kernel(t, parameters)), log: null };
  const phiQ = phi ? phi(scaledQ, parameters, n, d, setting.projection) : null;
  if (!phiQ) return null;
  const phiK = phi(scaledK, parameters, n, d, setting.projection);
  return { values: products(phiQ.values, phiK.values, n, phiQ.m), log: phiK.log, queryLog: phiQ.log };
}

// Near keys weigh as in softmax, the others by the map, in one unit a row; see linear_attention.
function joined({ values, log, queryLog }, setting, scores, { n, causal }) {
  const whole = setting.name === "softmax" && !(setting.window || setting.sinks);
  const out = new Float64Array(n * n);
  const exponents = new Float64Array(n);
  for (let i = 0; i < n; i += 1) {
    const seen = causal ? i + 1 : n;
    const near = (j) => whole || Math.abs(i - j) < setting.window || j < setting.sinks;
    let top = -Infinity;
    for (let j = 0; j < seen; j += 1) if (near(j)) top = Math.max(top, scores[i * n + j]);
    const unit = setting.gain + (queryLog ? queryLog[i] : 0) + (setting.relative && top > -Infinity ? top : 0);
    let reference = -Infinity;
    for (let j = 0; j < seen; j += 1) {
      const far = values[i * n + j] === 0 ? -Infinity : unit + (log ? log[j] : 0);
      exponents[j] = near(j) ? scores[i * n + j] : far;
      reference = Math.max(reference, exponents[j]);
    }
    for (let j = 0; j < seen; j += 1) {
      const size = exponents[j] === -Infinity ? 0 : Math.exp(exponents[j] - reference);
      out[i * n + j] = (near(j) ? 1 : values[i * n + j]) * size;
    }
  }
  return { values: out, log: null };
}

// Rows over their sums, NaN where the sum is 0; each row with its own maximum of the log-scales taken
// out, and without the log-scale of the query, which cancels.
function normalized({ values, log }, { n, causal }) {
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i += 1) {
    const seen = causal ? i + 1 : n;
    let top = 0;
    if (log) {
      top = -Infinity;
      for (let j = 0; j < seen; j += 1) top = Math.max(top, log[j]);
    }
    let total = 0;
    for (let j = 0; j < seen; j += 1) {
      out[i * n + j] = values[i * n + j] * (log ? Math.exp(log[j] - top) : 1);
      total += out[i * n + j];
    }
    for (let j = 0; j < seen; j += 1) out[i * n + j] = total === 0 ? NaN : out[i * n + j] / total;
  }
  return out;
}

const scoresOf = ({ q, k, n, d, scale }) => products(q, k, n, d).map((x) => x * scale);

const EVERYTHING_EXACT = { name: "softmax", window: 0, sinks: 0, gain: 0 };

function softmaxWeights(head, scores = scoresOf(head)) {
  return normalized(joined({ values: new Float64Array(head.n ** 2) }, EVERYTHING_EXACT, scores, head), head);
}

// null where the file does not hold what the map needs (a function of the user, learned weights). What
// stays the same while only the window changes can be given.
function mapWeights(head, setting, similar = similarities(head, setting), scores = null) {
  if (!similar) return null;
  if (!(setting.window || setting.sinks || setting.name === "softmax")) return normalized(similar, head);
  return normalized(joined(similar, setting, scores || scoresOf(head), head), head);
}
