// Groups and calls that open and close in place.

function toggle(box) {
  if (box.kind === "card") unfoldCard(box);
  else if (box.node.calls.length) flip(view.opened, box.id);
  else return;
  rebuild(box.id);
  showOpened(scene.byId.get(box.id));
  if (selected) showDetails(selected.node);
}

// What was opened and does not fit is brought to where it can be read.
function showOpened(box) {
  if (!box.isOpen) return;
  const { x, y, w, h } = visiblePart();
  if (box.x >= x && box.y >= y && box.x + box.w <= x + w && box.y + box.h <= y + h) return;
  const zoom = Math.min(camera.zoom, Math.max(READABLE, zoomToFit(view.room, box)));
  const isWide = box.w * zoom > view.room.w;
  const left = isWide ? MARGIN : (canvas.clientWidth - box.w * zoom) / 2;
  flyCamera({ zoom, x: left - box.x * zoom, y: MARGIN - box.y * zoom });
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

// Opens everything; in a large graph one level more, since nobody could find the way otherwise.
function unfoldAll() {
  const all = view.graph.count <= FIRST.large;
  for (let round = 0; round < (all ? 12 : 1); round++) {
    const closed = scene.boxes.filter((box) => box.kind === "card" && !box.isOpen);
    const calls =
      all && view.graph.count + view.opened.size * 20 < FIRST.large ? closedCalls() : [];
    if (!closed.length && !calls.length) break;
    for (const card of closed) view.unfolded.add(card.id);
    for (const box of calls) view.opened.add(box.id);
    rebuild();
  }
  fitReadably();
}

const closedCalls = () =>
  scene.boxes.filter(
    (box) => box.kind === "node" && !box.path && !box.isOpen && box.node.calls.length,
  );

function foldAll() {
  view.unfolded.clear();
  view.opened.clear();
  rebuild();
  fitReadably();
}
