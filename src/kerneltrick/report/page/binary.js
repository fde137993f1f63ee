// Arrays that travel in the page as base64.

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

function numbers(base64, size, read) {
  const view = binary(base64);
  return Float64Array.from({ length: view.byteLength / size }, (_, i) => read(view, size * i));
}

const float16 = (base64) => numbers(base64, 2, (view, at) => half(view.getUint16(at, true)));
const float32 = (base64) => numbers(base64, 4, (view, at) => view.getFloat32(at, true));
const float64 = (base64) => numbers(base64, 8, (view, at) => view.getFloat64(at, true));
