// The picture as SVG, all of it, in the colours of a theme: for files and for print.

function toSvg(theme) {
  const pad = 24;
  const window = { x: -pad, y: -pad, w: scene.w + 2 * pad, h: scene.h + 2 * pad };
  const painter = new SvgPainter(theme);
  paintScene(painter, scene, { window, zoom: 1, marks: unmarked });
  return painter.document(window.x, window.y, window.w, window.h, `graph ${view.graph.name}`);
}

function saveSvg() {
  const url = URL.createObjectURL(new Blob([toSvg(theme)], { type: "image/svg+xml" }));
  const link = element("a", { href: url, download: `${view.graph.name}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

addEventListener("beforeprint", () => {
  const text = toSvg(readTheme($("print")));
  const made = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  $("print").replaceChildren(document.importNode(made, true), legend());
  $("text").open = true;
});
addEventListener("afterprint", () => {
  $("print").replaceChildren();
  $("text").open = false;
});
