// The weights of every head, from the queries and keys in the file.

const picture = comparison.picture;
const N = picture.tokens;
const D = comparison.data.d;
const LAYERS = comparison.data.layers;
const HEADS = comparison.data.heads;
const CAUSAL = comparison.data.causal;
const queries = float16(picture.q);
const keys = float16(picture.k);
const settings = maps.map((map) => {
  const found = picture.maps.find((entry) => entry.map === map.map);
  return found ? { ...found, projection: found.projection ? float32(found.projection) : null } : null;
});

function tokensOf(array, heads, layer, head) {
  const start = (layer * heads + head) * N * D;
  return array.subarray(start, start + N * D);
}

// Shared key heads: query head h uses key head h // (H/H_kv).
function headAt(layer, head) {
  const shared = HEADS.length / comparison.data.kv_heads;
  return {
    q: tokensOf(queries, HEADS.length, layer, head),
    k: tokensOf(keys, comparison.data.kv_heads, layer, Math.floor(head / shared)),
    n: N,
    d: D,
    causal: CAUSAL,
    scale: comparison.data.scale,
  };
}

const remembered = new Map();

function weights(layer, head, map = null) {
  const key = `${layer} ${head} ${map}`;
  if (!remembered.has(key)) {
    if (remembered.size > 64) remembered.clear();
    const found = headAt(layer, head);
    remembered.set(key, map === null ? softmaxWeights(found) : settings[map] && mapWeights(found, settings[map]));
  }
  return remembered.get(key);
}
