// The first look at a graph, and the modes in which it is looked at.

const SMALL = 48;
// The first look: as much is unfolded as can be read at this zoom. Of a large graph only groups.
const FIRST = { zoom: 0.8, largeZoom: 0.86, large: 400, cards: 40, tries: 60 };

// The first look at a graph: groups are unfolded from the outside in while all can still be read.
function look() {
  measureRoom();
  view.columns.clear();
  const isLarge = view.graph.count > FIRST.large;
  const least = isLarge ? FIRST.largeZoom : FIRST.zoom;
  scene = buildScene(view);
  if (scene.boxes.some((box) => box.kind === "card")) unfoldWhile(isLarge, least);
  const zoom = zoomToFit(view.room, scene);
  setCamera(Math.max(zoom, scene.boxes.some((box) => box.kind === "card") ? least : READABLE));
  looked = { ...camera };
}

// What is opened first: scopes, then what was derived of and what was derived, which is the network,
// then the rest. Of a large graph the largest part says most; of a small one the small parts fit.
function orderOf({ nodes, group }, isLarge) {
  const isInner = group.children.length > 0;
  const rank = group.isArguments ? 3 : group.scope ? 0 : group.linked ? 1 : 2;
  return rank * 1e6 + (isLarge ? -nodes.length : nodes.length + (isInner ? 0 : 1e3));
}

// Of a large graph no nodes are shown at first. Beside a network and its backward, what is done over
// and over stays closed: arguments in parts, and the optimizer, which does the same for each variable.
function isOpenedFirst({ group, graph }, isLarge) {
  if (!group.children.length) return !isLarge && !group.kind;
  const isRepeated = group.children.some((child) => child.kind === "rounds");
  return !graph.backward || group.linked > 0 || (!!group.scope && !isRepeated);
}

// Ranges of one list open together or not at all.
const areRanges = ({ group }, other) =>
  group.isRange && other.group.isRange && group.parent === other.group.parent;

function unfoldWhile(isLarge, least) {
  const cardsOf = (scene) => scene.boxes.filter((box) => box.kind === "card");
  const byOrder = (a, b) => orderOf(a, isLarge) - orderOf(b, isLarge);
  let queue = cardsOf(scene).filter((card) => !card.path && isOpenedFirst(card, isLarge));
  for (let tries = 0; queue.length && tries < FIRST.tries; tries++) {
    const [next] = queue.sort(byOrder);
    const cards = queue.filter((card) => card === next || areRanges(card, next));
    queue = queue.filter((card) => !cards.includes(card));
    for (const card of cards) view.unfolded.add(card.id);
    view.columns.clear();
    const tried = buildScene(view);
    if (zoomToFit(view.room, tried) < least || (isLarge && cardsOf(tried).length > FIRST.cards)) {
      for (const card of cards) view.unfolded.delete(card.id);
      continue;
    }
    const children = cards.flatMap((card) =>
      card.group.children.map((child) => tried.byId.get(cardId(card.path, child))),
    );
    queue.push(...children.filter((child) => isOpenedFirst(child, isLarge)));
  }
  view.columns.clear();
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
  if (graph.count <= SMALL) return "flow";
  return graph.nodes.some((node) => node.kind === "node" && node.scope) ? "scopes" : "lines";
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
  const breadcrumbs = [
    element(
      "button",
      { type: "button", onclick: () => showGraph(model.entry) },
      `@${model.entry.name}`,
    ),
  ];
  if (view.graph !== model.entry)
    breadcrumbs.push(element("span", {}, "▸"), element("b", {}, `@${view.graph.name}`));
  $("breadcrumbs").replaceChildren(...breadcrumbs);
  showMode();
}

function showMode() {
  for (const mode of ["flow", "lines", "scopes"])
    $(mode).setAttribute("aria-pressed", String(view.mode === mode));
}
