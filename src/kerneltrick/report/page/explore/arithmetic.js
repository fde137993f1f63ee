// What the chapters compute, in typed arrays; a test compares all of it with kerneltrick.

// Uniform numbers from a seed, the same in every browser (mulberry32).
function uniform(seed) {
  let at = seed >>> 0;
  return () => {
    at = (at + 0x6d2b79f5) >>> 0;
    let t = Math.imul(at ^ (at >>> 15), at | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Standard normal numbers (Box–Muller).
function normals(count, seed) {
  const next = uniform(seed);
  return Float64Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()));
}

// Multiply-adds and bytes in between (float32) of (QKᵀ)V and Q(KᵀV) after `step` of 2n rows, and the n
// from which on the second order is cheaper: n²(d + M) = 2ndM.
function countOrders({ n, d, width, step = 2 * n }) {
  const [made, used] = [Math.min(step, n), Math.max(0, step - n)];
  return {
    weights: { products: made * n * d + used * n * width, bytes: 4 * n * n },
    state: { products: (made + used) * d * width, bytes: 4 * d * width },
    crossover: (2 * d * width) / (d + width),
  };
}

// Weights (n, n) times values (n, width).
function outputsOf(weights, v, n, width) {
  const out = new Float64Array(n * width);
  for (let i = 0; i < n; i += 1) {
    for (let j = 0; j < n; j += 1) {
      const weight = weights[i * n + j];
      if (weight === 0) continue;
      for (let c = 0; c < width; c += 1) out[i * width + c] += weight * v[j * width + c];
    }
  }
  return out;
}

// ‖found − truth‖ / ‖truth‖.
function relativeError(found, truth) {
  let [lost, size] = [0, 0];
  for (let i = 0; i < truth.length; i += 1) {
    lost += (found[i] - truth[i]) ** 2;
    size += truth[i] ** 2;
  }
  return Math.sqrt(lost / size);
}

// The weights A of a map against those of softmax, as analysis.analyze_map has them; rows without weights
// (their sum is 0) are counted and left out.
function judge(weights, softmax, n) {
  let [squares, entries, condition, negative, undefinedRows] = [0, 0, NaN, 0, 0];
  for (let i = 0; i < n; i += 1) {
    if (Number.isNaN(weights[i * n])) {
      undefinedRows += 1;
      continue;
    }
    let size = 0;
    for (let at = i * n; at < (i + 1) * n; at += 1) {
      squares += (weights[at] - softmax[at]) ** 2;
      size += Math.abs(weights[at]);
      if (weights[at] < 0) negative += 1;
    }
    entries += n;
    condition = Number.isNaN(condition) ? size : Math.max(condition, size);
  }
  return { mse: squares / entries, condition, negative: negative / entries, undefinedRows };
}

// Multiply-adds (with computing φ) and bytes of state of causal attention with a window, in float32, as
// costs.windowed counts them; a window or sinks beyond n count as far as there are tokens.
function countDial({ n, d, width, features, products, window, sinks }) {
  const w = Math.min(window, n);
  const t = Math.min(sinks, n - w);
  const pairs = n * w - (w * (w - 1)) / 2 + t * (n - w) - (t * (t - 1)) / 2;
  const far = n - w - t;
  return {
    products: pairs * (d + width) + 2 * far * (products + features * (width + 1)),
    bytes: 4 * (features * (width + 1) + (Math.max(0, w - 1) + t) * (d + width)),
  };
}

// The state (d, width) after `n` tokens: S ← aS + k wᵀ with w = v (it adds), or w = β(v − aSᵀk) (it
// corrects). See kerneltrick's linear attention with a decay, and its delta rule.
function runStream({ k, v, n, d, width, decay = 1, beta = 1, corrects, start = null }) {
  const state = start ? Float64Array.from(start) : new Float64Array(d * width);
  for (let t = 0; t < n; t += 1) {
    const key = k.subarray(t * d, (t + 1) * d);
    for (let at = 0; at < state.length; at += 1) state[at] *= decay;
    const held = corrects ? readState(state, key, width) : null;
    for (let c = 0; c < width; c += 1) {
      const value = v[t * width + c];
      const written = corrects ? beta * (value - held[c]) : value;
      for (let r = 0; r < d; r += 1) state[r * width + c] += key[r] * written;
    }
  }
  return state;
}

// Sᵀq.
function readState(state, q, width) {
  const out = new Float64Array(width);
  for (let r = 0; r < q.length; r += 1) {
    for (let c = 0; c < width; c += 1) out[c] += q[r] * state[r * width + c];
  }
  return out;
}

// Pairs to remember, as in lab 07: keys with q·k/√d = 8 cos(q, k), values of length 1.
function recallTask(pairs, d, width, seed) {
  const keys = normals(pairs * d, 7919 * seed + d);
  const vectors = normals(pairs * width, 7919 * seed + 100 + d);
  const scaled = (x, size, length) => x.map((value, at) => (value * length) / Math.hypot(...x.subarray(at - (at % size), at - (at % size) + size)));
  return { keys: scaled(keys, d, Math.sqrt(8) * d ** 0.25), values: scaled(vectors, width, 1), pairs, d, width };
}

// What every key gives back (pairs, width) after all pairs were written `passes` times. A map's features
// are never formed: the state that adds gives Σ κ(q, kⱼ) vⱼ, the one that corrects Σ κ̂(q, kⱼ) uⱼ, where κ̂
// is the kernel of features of length 1 and uₜ the sum of what was really written at key t: vₜ minus what
// the key gave back at that time.
function recallRead({ keys, values, pairs, d, width }, setting, corrects, passes = 1) {
  const head = { q: keys, k: keys, n: pairs, d, causal: false, scale: 1 / Math.sqrt(d) };
  if (setting.name === "softmax") return outputsOf(softmaxWeights(head), values, pairs, width);
  const kernel = similarities(head, setting).values;
  if (!corrects) return outputsOf(kernel, values, pairs, width);
  const lengths = Float64Array.from({ length: pairs }, (_, i) => Math.sqrt(kernel[i * pairs + i]) || 1);
  const cosines = kernel.map((x, at) => x / (lengths[Math.floor(at / pairs)] * lengths[at % pairs]));
  const written = new Float64Array(pairs * width);
  for (let step = 0; step < passes * pairs; step += 1) {
    const t = step % pairs;
    const change = values.slice(t * width, (t + 1) * width);
    for (let s = 0; s < (step < pairs ? t : pairs); s += 1) {
      for (let c = 0; c < width; c += 1) change[c] -= cosines[t * pairs + s] * written[s * width + c];
    }
    for (let c = 0; c < width; c += 1) written[t * width + c] += change[c];
  }
  return outputsOf(cosines, written, pairs, width);
}

// The share of keys whose own value is the one most like what they give back.
function recallShare(task, setting, corrects, passes = 1) {
  const { values, pairs, width } = task;
  const likeness = products(recallRead(task, setting, corrects, passes), values, pairs, width);
  let right = 0;
  for (let i = 0; i < pairs; i += 1) {
    let best = 0;
    for (let j = 1; j < pairs; j += 1) if (likeness[i * pairs + j] > likeness[i * pairs + best]) best = j;
    if (best === i) right += 1;
  }
  return right / pairs;
}
