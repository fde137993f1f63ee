// Says what this browser lacks. Written for old browsers: the rest of the page may not even parse there.
window.addEventListener("load", function () {
  var css = function (property, value) { return Boolean(window.CSS && CSS.supports && CSS.supports(property, value)); };
  var missing = [];
  if (!window.Float64Array) missing.push("typed arrays");
  if (!document.createElement("canvas").getContext) missing.push("the canvas element");
  if (!window.ResizeObserver) missing.push("ResizeObserver");
  if (!css("color", "light-dark(black, white)")) missing.push("light-dark() colours");
  if (!css("color", "color-mix(in srgb, red, blue)")) missing.push("color-mix()");
  var started = document.documentElement.getAttribute("data-started") === "yes";
  if (started && !missing.length) return;
  var told = document.getElementById("unsupported");
  told.textContent = (started ? "This page may look wrong: " : "This page could not start: ") +
    (missing.length ? "your browser lacks " + missing.join(", ") + ". " : "your browser does not understand its script. ") +
    "It needs Chrome or Edge 123, Firefox 120, Safari 17.5, or a later version.";
  told.hidden = false;
});
