// The page itself: the view, the side panel and the keyboard.

const model = readModel(JSON.parse(document.getElementById("data").textContent));
const $ = (id) => document.getElementById(id);
const canvas = $("canvas");
const minimap = $("minimap");
const FAMILIES = {
  data: "argument, constant",
  elementwise: "elementwise",
  contraction: "contraction",
  reduction: "reduction",
  movement: "movement",
  call: "call",
  effect: "effect",
};
const SMALL = 48;
// The first look: as much is unfolded as can be read at this zoom. Of a large graph only groups.
const FIRST = { zoom: 0.66, largeZoom: 0.86, large: 400, cards: 40, tries: 60 };
const READABLE = 0.62;

const view = {
  graph: model.entry,
  mode: "flow",
  opened: new Set(),
  unfolded: new Set(),
  shown: new Map(),
  aspect: 1.5,
  room: { w: 900, h: 600 },
  measure: null,
};
const camera = { x: 0, y: 0, zoom: 1 };
let theme = readTheme(document.documentElement);
let scene = null;
let selected = null; // {node, id}
let related = new Set();
let found = new Set();
let results = [];
let resultAt = -1;
let frame = 0;

// A new element with properties and children; text is never read as markup.
function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {}))
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function readTheme(from) {
  const style = getComputedStyle(from);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const names =
    "paper surface ink muted border edge bundle backwire accent related found backward role sans mono";
  const family = Object.fromEntries(Object.keys(FAMILIES).map((name) => [name, read(name)]));
  const colors = Object.fromEntries(names.split(" ").map((name) => [name, read(name)]));
  return { ...colors, family, tint: Number(read("tint")), far: Number(read("far")) };
}

const measuring = document.createElement("canvas").getContext("2d");
const widths = new Map();
view.measure = (text, font) => {
  const key = `${font.size} ${font.mono ? 1 : 0} ${font.weight || 0} ${text}`;
  if (!widths.has(key)) {
    measuring.font = fontOf(font, theme);
    widths.set(key, measuring.measureText(text).width);
  }
  return widths.get(key);
};

// What the painter asks about the boxes.
const marks = {
  isActive: false,
  measure: view.measure,
  isSelected: (box) => selected !== null && box.id === selected.id,
  isSame: (box) => selected !== null && box.node === selected.node && box.kind !== "card",
  isRelated: (box) =>
    box.kind === "card"
      ? !box.isOpen && box.nodes.some((node) => related.has(node))
      : related.has(box.node) && box.kind !== "pill",
  isFound: (box) =>
    found.size > 0 &&
    (box.kind === "card"
      ? !box.isOpen && box.nodes.some((node) => found.has(node))
      : found.has(box.node)),
  wire: (wire) =>
    selected !== null &&
    selected.node.graph === wire.from.graph &&
    [...selected.node.outputs, ...selected.node.operands].some((value) => wire.values.has(value)),
  edge: (edge) =>
    selected !== null &&
    (edge.fromBox.id === selected.id ||
      edge.toBox.id === selected.id ||
      (edge.graph === selected.node.graph &&
        edge.values.some((value) => selected.node.outputs.includes(value)))),
  links(scene) {
    const box = selected && scene.byId.get(selected.id);
    if (!box || box.kind === "card") return [];
    const links = [];
    const homeOf = (node, path) => (scene.homes.get(node) || []).find((home) => home.path === path);
    const home = homeOf(box.node, box.path) || box;
    if (!box.node.isConstant)
      for (const pill of scene.pills.get(box.node) || [])
        if (pill.path === box.path) links.push([home, pill]);
    for (const edge of scene.edges) {
      if (edge.toBox !== box || edge.fromBox.kind !== "pill" || edge.fromBox.node.isConstant)
        continue;
      const from = homeOf(edge.fromBox.node, box.path);
      if (from) links.push([from, edge.fromBox]);
    }
    return links.slice(0, 80);
  },
};

const unmarked = { isActive: false, measure: view.measure, links: () => [] };
for (const name of ["isSelected", "isSame", "isRelated", "isFound", "edge", "wire"])
  unmarked[name] = () => false;

// Scenes and the camera.

function rebuild(keep) {
  const before = keep && scene ? scene.byId.get(keep) : null;
  measureRoom();
  scene = buildScene(view);
  const after = before && scene.byId.get(keep);
  if (after) {
    camera.x += (before.x - after.x) * camera.zoom;
    camera.y += (before.y - after.y) * camera.zoom;
  }
  draw();
}

function measureRoom() {
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  view.room = { w: Math.max(200, w - 2 * MARGIN), h: Math.max(150, h - 2 * MARGIN) };
  view.aspect = Math.max(0.8, Math.min(2.2, w / Math.max(1, h)));
}
const MARGIN = 28;

function draw() {
  if (!frame) frame = requestAnimationFrame(paint);
}

function paint() {
  frame = 0;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.setTransform(
    ratio * camera.zoom,
    0,
    0,
    ratio * camera.zoom,
    ratio * camera.x,
    ratio * camera.y,
  );
  marks.isActive = selected !== null;
  paintScene(new CanvasPainter(context, theme), scene, {
    window: visiblePart(),
    zoom: camera.zoom,
    marks,
  });
  paintMinimap();
}

function visiblePart() {
  const { x, y, zoom } = camera;
  return {
    x: -x / zoom,
    y: -y / zoom,
    w: canvas.clientWidth / zoom,
    h: canvas.clientHeight / zoom,
  };
}

function fit() {
  setCamera(Math.min(zoomToFit(view.room, scene), 1.25));
}

// The zoom at which all fits, or at which it can be read and is scrolled.
function fitReadably() {
  setCamera(Math.max(zoomToFit(view.room, scene), Math.min(READABLE, 1.25)));
}

function setCamera(zoom) {
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  camera.zoom = Math.max(zoom, 0.02);
  const [left, top] = [(w - scene.w * camera.zoom) / 2, (h - scene.h * camera.zoom) / 2];
  camera.x = Math.max(MARGIN, left);
  camera.y = Math.max(MARGIN, top);
  draw();
}

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
let looked = { ...camera };

function zoomBy(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const zoom = Math.max(0.02, Math.min(3, camera.zoom * factor));
  camera.x = x - ((x - camera.x) * zoom) / camera.zoom;
  camera.y = y - ((y - camera.y) * zoom) / camera.zoom;
  camera.zoom = zoom;
  draw();
}

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

function flyTo(box, zoom = Math.max(camera.zoom, 0.85)) {
  const target = {
    zoom,
    x: canvas.clientWidth / 2 - (box.x + box.w / 2) * zoom,
    y: canvas.clientHeight / 2 - (box.y + Math.min(box.h, 200) / 2) * zoom,
  };
  flyCamera(target);
}

function flyCamera(target) {
  cancelAnimationFrame(flight);
  if (isCalm.matches) {
    Object.assign(camera, target);
    return draw();
  }
  const start = { ...camera };
  const begin = performance.now();
  const step = (now) => {
    const t = Math.min(1, (now - begin) / 260);
    const ease = 1 - (1 - t) ** 3;
    for (const key of ["x", "y", "zoom"])
      camera[key] = start[key] + (target[key] - start[key]) * ease;
    draw();
    flight = t < 1 ? requestAnimationFrame(step) : 0;
  };
  flight = requestAnimationFrame(step);
}
let flight = 0;

function isComfortable(box) {
  const { x, y, w, h } = visiblePart();
  const margin = 30 / camera.zoom;
  return (
    camera.zoom >= DETAIL.text &&
    box.x > x + margin &&
    box.y > y + margin * 2 &&
    box.x + box.w < x + w - margin &&
    box.y + box.h < y + h - margin
  );
}

function boxAt(clientX, clientY) {
  const area = canvas.getBoundingClientRect();
  const x = (clientX - area.left - camera.x) / camera.zoom;
  const y = (clientY - area.top - camera.y) / camera.zoom;
  for (let i = scene.boxes.length - 1; i >= 0; i--) {
    const box = scene.boxes[i];
    if (x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h) return box;
  }
  return null;
}

// Selecting.

function select(box, isMoving = true) {
  if (!box) return clearSelection();
  if (box.kind === "card") return;
  selected = { node: box.node, id: box.id };
  related = new Set(counterparts(box.node));
  pickInTree(box.node);
  showDetails(box.node);
  if (isMoving && !isComfortable(box)) flyTo(box);
  $("status").textContent = spoken(box.node);
  draw();
}

function clearSelection() {
  selected = null;
  related = new Set();
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
    path = `${path}/${node.index}`;
    view.opened.add(path);
    const number = node.calls.findIndex((call) => call.graph === callee);
    view.shown.set(path, number);
  }
  rebuild();
  return path;
}

function unfoldTo(node, path) {
  const { mode } = view;
  for (const group of lineage(groupsOf(node.graph, mode).leafOf.get(node)))
    view.unfolded.add(cardId(path, group));
}

const pathsOf = (graph) => {
  const paths = graph === view.graph ? [""] : [];
  for (const box of scene.boxes)
    if (box.isOpen && box.kind !== "card" && shownIn(box) === graph) paths.push(box.id);
  return paths;
};
const shownIn = (box) => box.node.calls[view.shown.get(box.id) || 0].graph;

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

// The side panel.

function nodeButton(node, note = "") {
  const own = node.kind === "node" ? node.op : node.kind;
  const text =
    node.graph === (selected ? selected.node.graph : view.graph)
      ? own
      : `${own}  @${node.graph.name}`;
  return element(
    "button",
    { className: "node", type: "button", onclick: () => reveal(node) },
    element("i", { className: `dot ${node.family}${node.isBackward ? " back" : ""}` }),
    element("code", {}, node.name),
    element("span", {}, note || text),
  );
}

function section(title, ...children) {
  return element("section", {}, element("h3", {}, title), ...children);
}

function listOf(nodes, most = 24) {
  const list = element(
    "div",
    { className: "nodes" },
    ...nodes.slice(0, most).map((node) => nodeButton(node)),
  );
  if (nodes.length > most) {
    const more = element("button", { className: "more", type: "button" }, `all ${nodes.length}`);
    more.onclick = () => list.replaceChildren(...nodes.map((node) => nodeButton(node)));
    list.append(more);
  }
  return list;
}

function showDetails(node) {
  const { graph } = node;
  const parts = [
    element(
      "header",
      { className: "picked" },
      element("i", { className: `dot ${node.family}${node.isBackward ? " back" : ""}` }),
      element("h2", {}, node.kind === "node" ? node.op : node.kind),
      element("code", {}, node.name),
    ),
    sourceSection(node),
    linkSection(node),
    node.calls.length ? callSection(node) : null,
    valuesSection(node),
    node.attributes.length ? attributesSection(node) : null,
    node.operands.length ? operandsSection(node) : null,
    usersSection(node),
    lineSection(node),
  ];
  if (graph !== model.entry) parts.push(section("Function", element("p", {}, `@${graph.name}`)));
  $("details").replaceChildren(...parts.filter(Boolean));
  $("details").scrollTop = 0;
}

function sourceSection(node) {
  const { place } = node;
  if (!place.file) return null;
  const roles = place.roles.map((role) => element("span", { className: "role" }, role));
  const line = element("p", { className: "place" }, placeText(place), ...roles);
  return element(
    "section",
    { className: "source" },
    line,
    place.code ? element("pre", {}, place.code) : null,
  );
}

function callSection(node) {
  const rows = node.calls.map((call, number) => {
    const isOpen =
      selected && view.opened.has(selected.id) && (view.shown.get(selected.id) || 0) === number;
    const open = element("button", { type: "button" }, isOpen ? "close" : "open here");
    open.onclick = () => {
      view.shown.set(selected.id, number);
      isOpen ? view.opened.delete(selected.id) : view.opened.add(selected.id);
      rebuild(selected.id);
      showDetails(node);
    };
    const alone = element(
      "button",
      { type: "button", onclick: () => showGraph(call.graph) },
      "show alone",
    );
    const name = element("code", {}, `${call.attribute}=@${call.graph.name}`);
    return element(
      "div",
      { className: "call" },
      name,
      element("small", {}, counted(call.graph.count, "node")),
      open,
      alone,
    );
  });
  return section(node.calls.length > 1 ? "Functions" : "Function", ...rows);
}

function valuesSection(node) {
  const rows = node.outputs.map((value) => {
    const made = node.graph.values[value];
    const given = made.given && made.name !== `%${made.given}` ? ` “${made.given}”` : "";
    return element(
      "p",
      { className: "value" },
      element("code", {}, made.name),
      element("b", {}, made.type.text),
      given,
    );
  });
  return rows.length ? section(rows.length > 1 ? "Values" : "Value", ...rows) : null;
}

function attributesSection(node) {
  const rows = node.attributes.map(([name, text]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      element("td", {}, element("code", {}, text)),
    ),
  );
  return section("Attributes", element("table", {}, ...rows));
}

function operandsSection(node) {
  const buttons = node.operands.map((value) => {
    const made = node.graph.values[value];
    return made ? nodeButton(made.node, made.type.text) : element("p", {}, "undefined");
  });
  return section("Operands", element("div", { className: "nodes" }, ...buttons));
}

function usersSection(node) {
  const users = [
    ...new Set(
      node.outputs.flatMap((value) => node.graph.values[value].users.map((user) => user.node)),
    ),
  ];
  if (node.kind === "result") return null;
  return users.length
    ? section("Used by", listOf(users))
    : section("Used by", element("p", {}, "nothing"));
}

// What was derived of a node, or what it was derived of, in whatever functions that stands.
function linkSection(node) {
  const linked = counterparts(node);
  if (!linked.length) return null;
  const title = node.isBackward ? "Forward of this" : "Backward of this";
  const part = section(title, listOf(linked, 8));
  part.className = "related";
  return part;
}

function lineSection(node) {
  const linked = new Set(counterparts(node));
  const others = node.kind === "node" ? sameLine(node).filter((other) => !linked.has(other)) : [];
  return others.length ? section("Also of this line", listOf(others, 6)) : null;
}

function showOverview() {
  const { graph } = view;
  const counts = [
    ["nodes", graph.count],
    ["backward", graph.backward],
    ["arguments", graph.arguments],
    ["results", graph.results],
    ["functions", model.graphs.length - 1],
  ].filter(([, count]) => count);
  const table = element(
    "dl",
    { className: "counts" },
    ...counts.map(([name, count]) =>
      element("div", {}, element("dd", {}, count.toLocaleString("en")), element("dt", {}, name)),
    ),
  );
  $("details").replaceChildren(table, legend());
}

function legend() {
  const present = new Set(model.graphs.flatMap((graph) => graph.nodes.map((node) => node.family)));
  const rows = Object.entries(FAMILIES)
    .filter(([family]) => present.has(family))
    .map(([family, text]) => element("li", {}, element("i", { className: `dot ${family}` }), text));
  if (view.graph.backward) {
    rows.push(
      element(
        "li",
        { className: "wide" },
        element("i", { className: "dot elementwise back" }),
        "backward (∂): dashed, colour on the right",
      ),
    );
  }
  if (model.graphs.some((graph) => graph.nodes.some((node) => node.place.roles.includes("jvp")))) {
    rows.push(
      element(
        "li",
        { className: "wide" },
        element("b", { className: "sign" }, "δ"),
        "forward mode (a tangent)",
      ),
    );
  }
  rows.push(
    element(
      "li",
      { className: "wide" },
      element("i", { className: "dot pill" }),
      "dotted pill: a value from further away",
    ),
  );
  return section("Legend", element("ul", { className: "legend" }, ...rows));
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

function spoken(node) {
  const types = node.outputs.map((value) => node.graph.values[value].type.text).join(", ");
  return [node.name, node.op, types, placeText(node.place), node.isBackward ? "backward" : ""]
    .filter(Boolean)
    .join(", ");
}

// Searching.

function find(query) {
  $("search").value = query;
  results = search(model, query);
  found = new Set(results);
  resultAt = -1;
  const most = 200;
  const rows = results.slice(0, most).map((node, number) => {
    const type = node.outputs.length ? node.graph.values[node.outputs[0]].type.text : "";
    const where = node.graph === view.graph ? "" : `@${node.graph.name} `;
    const row = nodeButton(node, node.kind === "node" ? node.op : node.kind);
    row.onclick = () => goToResult(number);
    row.append(
      element("small", {}, type),
      element("small", { className: "where" }, where + placeText(node.place)),
    );
    return row;
  });
  if (results.length > most) rows.push(element("p", {}, `and ${results.length - most} more`));
  const count = query.trim()
    ? element(
        "p",
        { className: "count" },
        results.length ? counted(results.length, "node") : "nothing found",
      )
    : null;
  $("results").replaceChildren(...[count, ...rows].filter(Boolean));
  $("results").hidden = !query.trim();
  draw();
}

function goToResult(number) {
  if (!results.length) return;
  resultAt = (number + results.length) % results.length;
  [...$("results").querySelectorAll("button")].forEach((row, at) =>
    row.classList.toggle("here", at === resultAt),
  );
  $("results").querySelector(".here")?.scrollIntoView({ block: "nearest" });
  reveal(results[resultAt]);
}

// Walking along edges.

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
    ? box.node.operands
        .filter((value) => value >= 0)
        .map((value) => box.node.graph.values[value].node)
    : box.node.outputs.flatMap((value) =>
        box.node.graph.values[value].users.map((user) => user.node),
      );
  if (dy && nodes.length) reveal(nodes[0], box.path);
}

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

// The minimap, for scenes of which not all is in view.

function paintMinimap() {
  const window = visiblePart();
  const isWhole =
    window.x <= 8 &&
    window.y <= 8 &&
    window.x + window.w >= scene.w - 8 &&
    window.y + window.h >= scene.h - 8;
  minimap.hidden = isWhole || scene.boxes.length < 30;
  if (minimap.hidden) return;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [minimap.clientWidth, minimap.clientHeight];
  [minimap.width, minimap.height] = [w * ratio, h * ratio];
  const scale = Math.min((w - 12) / scene.w, (h - 12) / scene.h);
  Object.assign(minimap, {
    scale,
    left: (w - scene.w * scale) / 2,
    top: (h - scene.h * scale) / 2,
  });
  const context = minimap.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const draw = (box, color, alpha) => {
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(
      minimap.left + box.x * scale,
      minimap.top + box.y * scale,
      Math.max(1, box.w * scale),
      Math.max(1, box.h * scale),
    );
  };
  for (const box of scene.boxes)
    if (box.kind === "card") draw(box, box.isBackward ? theme.role : theme.muted, 0.16);
    else if (box.kind === "node" && !box.isOpen)
      draw(box, theme.family[box.node.family], box.node.isBackward ? 0.5 : 0.9);
  context.globalAlpha = 1;
  for (const box of scene.boxes) if (marks.isFound(box)) draw(box, theme.found, 1);
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.strokeRect(
    minimap.left + window.x * scale,
    minimap.top + window.y * scale,
    window.w * scale,
    window.h * scale,
  );
}

function aimMinimap(event) {
  const area = minimap.getBoundingClientRect();
  const x = (event.clientX - area.left - minimap.left) / minimap.scale;
  const y = (event.clientY - area.top - minimap.top) / minimap.scale;
  camera.x = canvas.clientWidth / 2 - x * camera.zoom;
  camera.y = canvas.clientHeight / 2 - y * camera.zoom;
  draw();
}

// The picture as SVG, all of it, in the colours of `theme`.

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

// Pointer and keyboard.

const pointers = new Map();
let press = null;

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.clientX, event.clientY]);
  press = { x: event.clientX, y: event.clientY, isMoved: false };
});
canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return hover(event);
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
  const now = [event.clientX, event.clientY];
  if (others.length) {
    const area = canvas.getBoundingClientRect();
    const distance = ([a, b], [c, d]) => Math.hypot(a - c, b - d) || 1;
    zoomBy(
      distance(now, others[0]) / distance(before, others[0]),
      others[0][0] - area.left,
      others[0][1] - area.top,
    );
  }
  if (press && Math.hypot(now[0] - press.x, now[1] - press.y) > 4) press.isMoved = true;
  if (press?.isMoved) {
    camera.x += now[0] - before[0];
    camera.y += now[1] - before[1];
    canvas.classList.add("moving");
    draw();
  }
  pointers.set(event.pointerId, now);
});
const release = (event) => {
  pointers.delete(event.pointerId);
  canvas.classList.remove("moving");
  if (press && !press.isMoved && event.type === "pointerup") click(event);
  if (!pointers.size) press = null;
};
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);

function click(event) {
  const box = boxAt(event.clientX, event.clientY);
  if (!box) return clearSelection();
  const area = canvas.getBoundingClientRect();
  const y = (event.clientY - area.top - camera.y) / camera.zoom;
  if (box.kind === "card") {
    const head = Math.max(CARD.header, 19 / camera.zoom);
    return y - box.y < head || !box.isOpen ? toggle(box) : clearSelection();
  }
  const x = (event.clientX - area.left - camera.x) / camera.zoom;
  if (box.isOpen && y - box.y < BOX.header && x - box.x < 34) return toggle(box);
  select(box, false);
}

canvas.addEventListener("dblclick", (event) => {
  const box = boxAt(event.clientX, event.clientY);
  if (box && box.kind === "pill") reveal(box.node, box.path);
  else if (box && box.kind !== "card") toggle(box);
});
canvas.addEventListener(
  "wheel",
  (event) => {
    // In a notebook the wheel scrolls the notebook until the graph is clicked.
    if (window.parent !== window && document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    const area = canvas.getBoundingClientRect();
    const step = event.deltaMode ? event.deltaY * 16 : event.deltaY;
    zoomBy(
      Math.exp(-step * (event.ctrlKey ? 0.01 : 0.0016)),
      event.clientX - area.left,
      event.clientY - area.top,
    );
  },
  { passive: false },
);

function hover(event) {
  const box = boxAt(event.clientX, event.clientY);
  canvas.classList.toggle("over", !!box);
  canvas.title =
    box && box.node && box.kind !== "card" ? spoken(box.node) : box ? box.code || "" : "";
}

minimap.addEventListener("pointerdown", (event) => {
  minimap.setPointerCapture(event.pointerId);
  aimMinimap(event);
});
minimap.addEventListener("pointermove", (event) => event.buttons && aimMinimap(event));

const KEYS = {
  ArrowUp: () => walk(0, -1),
  ArrowDown: () => walk(0, 1),
  ArrowLeft: () => walk(-1, 0),
  ArrowRight: () => walk(1, 0),
  Enter: () => {
    const box = selected && scene.byId.get(selected.id);
    if (box && box.kind === "pill") reveal(box.node, box.path);
    else if (box) toggle(box);
  },
  "+": () => zoomBy(1.25),
  "=": () => zoomBy(1.25),
  "-": () => zoomBy(0.8),
  f: fit,
  0: fit,
  t: () => ($("text").open = !$("text").open),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === "Escape") return escape();
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    return void ($("search").focus(), $("search").select());
  }
  if (isTyping || (event.target !== canvas && event.target !== document.body)) return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

function escape() {
  if ($("text").open) return void ($("text").open = false);
  if (document.activeElement === $("search") || $("search").value) {
    find("");
    return canvas.focus();
  }
  if (selected) return clearSelection();
  if (view.graph !== model.entry) showGraph(model.entry);
}

$("search").addEventListener("input", () => find($("search").value));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") goToResult(resultAt + (event.shiftKey ? -1 : 1));
  else if (event.key === "ArrowDown") goToResult(resultAt + 1);
  else if (event.key === "ArrowUp") goToResult(resultAt - 1);
  else return;
  event.preventDefault();
});
$("fit").onclick = fit;
$("in").onclick = () => zoomBy(1.25);
$("out").onclick = () => zoomBy(0.8);
$("flow").onclick = () => setMode("flow");
$("lines").onclick = () => setMode("lines");
$("scopes").onclick = () => setMode("scopes");
$("open").onclick = unfoldAll;
$("close").onclick = foldAll;
$("save").onclick = saveSvg;
$("show-text").onclick = () => ($("text").open = !$("text").open);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  theme = readTheme(document.documentElement);
  draw();
});
