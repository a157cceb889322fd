// The start, when all parts are there.

// Until somebody moves the view, it follows the size of the window; frames begin with none.
new ResizeObserver(() => {
  if (camera.zoom !== looked.zoom || camera.x !== looked.x || camera.y !== looked.y) return draw();
  view.unfolded.clear();
  look();
}).observe(canvas);

document.documentElement.classList.add("js");
$("text").open = false;
$("scopes").hidden = !model.hasScopes;
showGraph(model.entry);
growTree();

// For scripts and tests: where a node is on the screen, and what there is.
/** @type {any} */ (window).tracegraph = {
  model,
  view,
  camera,
  boxes: () => scene.boxes,
  wires: () => scene.wires,
  selected: () => selected && selected.node,
  locate(name) {
    const node = view.graph.nodes.find((node) => node.name === name);
    const [box] = (node && scene.homes.get(node)) || [];
    if (!box) return null;
    const area = canvas.getBoundingClientRect();
    return {
      x: area.left + camera.x + (box.x + box.w / 2) * camera.zoom,
      y: area.top + camera.y + (box.y + Math.min(box.h, 30) / 2) * camera.zoom,
    };
  },
};
