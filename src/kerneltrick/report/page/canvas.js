// Canvases: their size in pixels, and the colours of the style.

function canvasOf(canvas, width, height) {
  const ratio = Math.max(printing ? 2 : 1, window.devicePixelRatio || 1); // 2: prints are sharp
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w) canvas.width = w; // a new size means a new layout of the page
  if (canvas.height !== h) canvas.height = h;
  const context = canvas.getContext("2d");
  context.resetTransform();
  context.clearRect(0, 0, w, h);
  context.scale(ratio, ratio);
  return context;
}

// A colour of the style as a canvas takes it: resolved, where it is one of a light and a dark one.
function colourFor(context, name) {
  context.canvas.style.color = `var(${name})`;
  return getComputedStyle(context.canvas).color;
}
