// The first look at a graph, and the modes in which it is looked at.

const SMALL = 48;
// The first look: as much is unfolded as can be read at this zoom. Of a large graph only groups.
const FIRST = { zoom: 0.66, largeZoom: 0.86, large: 400, cards: 40, tries: 60 };

// The first look at a graph: groups are unfolded from the outside in while all can still be read.
function look() {
  measureRoom();
  const isLarge = view.graph.count > FIRST.large;
  const least = isLarge ? FIRST.largeZoom : FIRST.zoom;
  scene = buildScene(view);
  if (scene.boxes.some((box) => box.kind === "card")) unfoldWhile(isLarge, least);
  const zoom = zoomToFit(view.room, scene);
  setCamera(Math.max(zoom, scene.boxes.some((box) => box.kind === "card") ? least : READABLE));
  looked = { ...camera };
}

// Scopes come first, then small leaves, arguments, and what holds groups of the same line.
function easeOf({ nodes, group }) {
  if (group.scope && group.children.length) return 0;
  return nodes.length + (group.children.length ? 1000 : group.isArguments ? 500 : 0);
}

function unfoldWhile(isLarge, least) {
  const queue = scene.boxes.filter((box) => box.kind === "card" && !box.path);
  // Of a large graph the largest part says most; of a small one the small parts fit.
  queue.sort((a, b) => (isLarge ? b.nodes.length - a.nodes.length : easeOf(a) - easeOf(b)));
  for (let tries = 0; queue.length && tries < FIRST.tries; tries++) {
    const card = queue.shift();
    if (!card.group.children.length && (isLarge || card.group.short)) continue;
    view.unfolded.add(card.id);
    const tried = buildScene(view);
    const cards = tried.boxes.filter((box) => box.kind === "card").length;
    if (zoomToFit(view.room, tried) < least || (isLarge && cards > FIRST.cards)) {
      view.unfolded.delete(card.id);
      continue;
    }
    scene = tried;
    for (const child of card.group.children) queue.push(scene.byId.get(cardId(card.path, child)));
  }
  scene = buildScene(view);
}

function showGraph(graph) {
  view.graph = graph;
  view.mode = firstMode(graph);
  view.opened.clear();
  view.unfolded.clear();
  selected = null;
  look();
  clearSelection();
  showTrail();
}

function firstMode(graph) {
  if (graph.nodes.some((node) => node.kind === "node" && node.scope)) return "scopes";
  return graph.count > SMALL ? "lines" : "flow";
}

function setMode(mode) {
  view.mode = mode;
  view.unfolded.clear();
  view.opened.clear();
  const kept = selected && selected.node;
  look();
  showMode();
  if (kept) reveal(kept);
}

function showTrail() {
  const trail = [
    element(
      "button",
      { type: "button", onclick: () => showGraph(model.entry) },
      `@${model.entry.name}`,
    ),
  ];
  if (view.graph !== model.entry)
    trail.push(element("span", {}, "▸"), element("b", {}, `@${view.graph.name}`));
  $("trail").replaceChildren(...trail);
  showMode();
}

function showMode() {
  for (const mode of ["flow", "lines", "scopes"])
    $(mode).setAttribute("aria-pressed", String(view.mode === mode));
}
