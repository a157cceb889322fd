// Groups and calls that open and close in place.

const MOST_NODES = 5000; // with calls, that are drawn in one second or two

function toggle(box) {
  if (box.kind === "card") unfoldCard(box);
  else if (box.node.calls.length) flip(view.opened, box.id);
  else return;
  rebuild(box.id);
  showFlipped(scene.byId.get(box.id));
  if (selected) showDetails(selected.node);
}

// What was opened or closed stays where it is on the screen, unless all has room: then all is shown.
// What would be cut off is moved by as little as brings it into view.
function showFlipped(box) {
  const zoom = zoomToFit(view.room, scene);
  if (zoom >= Math.min(camera.zoom, READABLE)) return flyCamera(cameraFor(zoom));
  if (!box.isOpen) return;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  const shift = (at, size, room) => Math.max(MARGIN - at, Math.min(0, room - MARGIN - at - size));
  const near = Math.min(camera.zoom, Math.max(READABLE, zoomToFit(view.room, box)));
  const [x, y] = [camera.x + box.x * camera.zoom, camera.y + box.y * camera.zoom];
  const [left, top] = [x + shift(x, box.w * near, w), y + shift(y, box.h * near, h)];
  flyCamera({ zoom: near, x: left - box.x * near, y: top - box.y * near });
}

// A group opens together with what is alone in it.
function unfoldCard(box) {
  flip(view.unfolded, box.id);
  if (!view.unfolded.has(box.id)) return;
  let { group } = box;
  while (group.children.length === 1) {
    [group] = group.children;
    view.unfolded.add(cardId(box.path, group));
  }
}

const flip = (set, key) => set.delete(key) || set.add(key);

// Opens all groups, and calls from the outside in for as long as that can be drawn at once.
function unfoldAll() {
  let level = [{ graph: view.graph, path: "", box: "" }];
  let drawn = view.graph.count;
  while (level.length && drawn <= MOST_NODES) {
    for (const { graph, path, box } of level) {
      if (box) view.opened.add(box);
      for (const group of groupsOf(graph, view.mode).all) view.unfolded.add(cardId(path, group));
    }
    level = level.flatMap(({ graph, path }) => calledFrom(graph, path));
    drawn += sum(level, ({ graph }) => graph.count);
  }
  view.columns.clear();
  rebuild();
  // All of a large graph is a map of it; of others the labels are drawn.
  if (view.graph.count > FIRST.large) fit();
  else fitFrom(DETAIL.text);
}

function calledFrom(graph, path) {
  const callers = graph.nodes.filter((node) => node.calls.length);
  return callers.flatMap((node) => {
    const box = `${path}/${node.index}`;
    return node.calls.map(({ graph }, number) => ({ graph, path: partPath(box, number), box }));
  });
}

function foldAll() {
  view.unfolded.clear();
  view.opened.clear();
  view.columns.clear();
  rebuild();
  fitFrom(READABLE);
}
