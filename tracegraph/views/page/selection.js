// Selecting nodes, bringing them into view, and walking from one to the next.

function select(box, isMoving = true) {
  if (!box) return clearSelection();
  if (box.kind === "card") return;
  selected = { node: box.node, id: box.id };
  related = new Set(counterparts(box.node));
  sources = new Set(operandMakers(box.node));
  pickInTree(box.node);
  showDetails(box.node);
  if (isMoving && !isComfortable(box)) flyTo(box);
  $("status").textContent = spoken(box.node);
  draw();
}

function clearSelection() {
  selected = null;
  related = new Set();
  sources = new Set();
  pickInTree(null);
  showOverview();
  $("status").textContent = "nothing is selected";
  draw();
}

// Brings a node into view, whatever is closed on the way to it, and selects it. What stands in a
// called function is opened in its caller.
function reveal(node, path = null) {
  const base = path !== null ? path : openedWay(node.graph);
  unfoldTo(node, base);
  rebuild();
  const homes = scene.homes.get(node) || [];
  select(homes.find((home) => home.path === base) || homes[0] || (scene.pills.get(node) || [])[0]);
}

// The path at which a graph is shown, if need be after opening the calls that lead to it.
function openedWay(graph) {
  const [shown] = pathsOf(graph);
  if (shown !== undefined) return shown;
  if (!callsTo(view.graph, graph)) showGraph(callsTo(model.entry, graph) ? model.entry : graph);
  let path = "";
  for (const { node, callee } of callsTo(view.graph, graph)) {
    unfoldTo(node, path);
    const box = `${path}/${node.index}`;
    view.opened.add(box);
    const number = node.calls.findIndex((call) => call.graph === callee);
    path = partPath(box, number);
  }
  rebuild();
  return path;
}

function unfoldTo(node, path) {
  const { mode } = view;
  for (const group of withAncestors(groupsOf(node.graph, mode).leafOf.get(node)))
    view.unfolded.add(cardId(path, group));
}

const pathsOf = (graph) => {
  const paths = graph === view.graph ? [""] : [];
  for (const box of scene.boxes)
    if (box.isOpen && box.kind !== "card")
      box.node.calls.forEach((call, number) => {
        if (call.graph === graph) paths.push(partPath(box.id, number));
      });
  return paths;
};

function walk(dx, dy) {
  const box = selected && scene.byId.get(selected.id);
  if (!box) return select(nearestTo(visiblePart()));
  const around = neighbours(box).filter((other) => other !== box);
  const rows = dx
    ? scene.boxes.filter((other) => other.path === box.path && other.kind !== "card")
    : around;
  let best = null;
  for (const other of rows) {
    if (other === box) continue;
    const [x, y] = [
      other.x + other.w / 2 - box.x - box.w / 2,
      other.y + other.h / 2 - box.y - box.h / 2,
    ];
    const [along, across] = dx ? [x * dx, Math.abs(y)] : [y * dy, Math.abs(x)];
    if (along <= 1 || (dx && across > 60)) continue;
    const cost = along + across * (dx ? 3 : 0.6);
    if (!best || cost < best.cost) best = { cost, other };
  }
  if (best) return select(best.other);
  const home =
    box.kind === "pill" &&
    (scene.homes.get(box.node) || []).find((other) => other.path === box.path);
  if (home) return select(home);
  const isBack = box.flip ? dy > 0 : dy < 0;
  const nodes = isBack
    ? operandMakers(box.node)
    : box.node.outputs.flatMap((value) =>
        box.node.graph.values[value].users.map((user) => user.node),
      );
  if (dy && nodes.length) reveal(nodes[0], box.path);
}

const operandMakers = (node) =>
  node.operands.filter((value) => value >= 0).map((value) => node.graph.values[value].node);

function neighbours(box) {
  const around = [];
  for (const edge of scene.edges) {
    if (edge.fromBox === box) around.push(edge.toBox);
    if (edge.toBox === box) around.push(edge.fromBox);
  }
  return around;
}

function nearestTo({ x, y, w, h }) {
  let best = null;
  for (const box of scene.boxes) {
    if (box.kind === "card" || box.kind === "pill") continue;
    const distance = Math.hypot(box.x + box.w / 2 - x - w / 2, box.y + box.h / 2 - y - h / 2);
    if (!best || distance < best.distance) best = { distance, box };
  }
  return best && best.box;
}
