// From graphs to what is drawn: boxes, pills, cards and the edges between them.
//
// A card is the box of a group. A value that was made far away, or in another group, is shown by a
// pill beside its user instead of an edge across the page; wires say what goes from card to card.

const FONT = {
  op: { size: 13, weight: 600 },
  name: { size: 11, mono: true },
  small: { size: 10.5, mono: true },
  title: { size: 14, weight: 600 },
  code: { size: 12, mono: true },
};
const BOX = { pad: 12, one: 30, two: 46, pill: 24, header: 34, inside: 18, label: 36, chip: 20 };
const CARD = {
  header: 40,
  code: 18,
  closed: 46,
  pad: 18,
  gapY: 42,
  least: 220,
  widest: 360,
  keep: 1.5,
};
// Where a graph is drawn by groups rather than as one flow.
const LARGE = { flow: 300, called: 40, zoom: 0.3 };
const CLOSEST = 1.75; // the zoom at which a small graph fills the window and is not yet too large
const CHIPS = 4; // a node with more outputs says how many, and not of what types

function buildScene(view) {
  const plane = graphPlane(view, view.graph, "");
  const scene = {
    boxes: [],
    edges: [],
    wires: [],
    byId: new Map(),
    homes: new Map(),
    pills: new Map(),
  };
  flatten(scene, plane, 0, 0, "paper");
  return Object.assign(scene, { w: plane.w, h: plane.h });
}

function flatten(scene, plane, x, y, below) {
  for (const box of plane.boxes) {
    Object.assign(box, { x: box.x + x, y: box.y + y, ground: below });
    scene.boxes.push(box);
    scene.byId.set(box.id, box);
    if (box.node && box.kind !== "card") {
      const table = box.kind === "pill" ? scene.pills : scene.homes;
      if (!table.has(box.node)) table.set(box.node, []);
      table.get(box.node).push(box);
    }
    const ground = (box.node || box).isBackward ? "backward" : "surface";
    for (const { plane, x, y, isRight } of box.inside || [])
      flatten(scene, plane, box.x + x, box.y + y, isRight ? "backward" : ground);
  }
  const moved = ([a, b]) => [a + x, b + y];
  for (const edge of plane.edges) {
    scene.edges.push({ ...edge, points: edge.points.map(moved), ...bounds(edge.points, x, y) });
  }
  for (const wire of plane.wires || []) {
    const { points, label } = wire;
    scene.wires.push({
      ...wire,
      ground: below,
      points: points.map(moved),
      label: label && { ...label, x: label.x + x, y: label.y + y },
      ...bounds(points, x, y),
    });
  }
}

function bounds(points, x, y) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [a, b] of points) {
    left = Math.min(left, a);
    right = Math.max(right, a);
    top = Math.min(top, b);
    bottom = Math.max(bottom, b);
  }
  return { x: left + x - 4, y: top + y - 4, w: right - left + 8, h: bottom - top + 8 };
}

// A called graph is drawn by groups only where it is large enough to need it, and so is a flow
// that would be a thread of which nothing could be read.
function graphPlane(view, graph, path) {
  const isSmall = path && graph.count <= LARGE.called;
  const isFlow = view.mode === "flow" && graph.count <= LARGE.flow;
  if (!isSmall && !isFlow) return groupsPlane(view, graph, path);
  const plane = flowPlane(view, graph, graph.nodes, path, { reach: 9 });
  const isThread = !isSmall && zoomToFit(view.room, plane) < LARGE.zoom;
  return isThread && graph.count > LARGE.called ? groupsPlane(view, graph, path) : plane;
}

function zoomToFit(room, { w, h }) {
  return Math.min(room.w / Math.max(1, w), room.h / Math.max(1, h), CLOSEST);
}

// The nodes as a layered graph. Values from outside, constants that have several users and values
// that come from more than `reach` layers above are pills.
function flowPlane(view, graph, nodes, path, { reach, flip = false, gap = null }) {
  const boxes = nodes.map((node) => nodeBox(view, node, path, flip));
  const numbers = new Map(nodes.map((node, number) => [node, number]));
  const layers = layersOf(boxes, directEdges(graph, nodes, numbers));
  const edges = [];
  const cables = new Map();
  const join = (from, fromX, user, value) => {
    const to = numbers.get(user);
    const ends = { from, fromX, to, graph, fromBox: boxes[from], toBox: boxes[to], flip };
    user.operands.forEach((operand, place) => {
      if (operand !== value) return;
      const toX = port(boxes[to], place, user.operands.length);
      const key = boxes[from].isCable ? `${from} ${to}` : "";
      const cable = key && cables.get(key);
      if (cable) {
        cable.values.push(value);
        cable.toX += (toX - cable.toX) / cable.values.length; // it ends amid its ports
        return;
      }
      edges.push({ ...ends, toX, value, values: [value] });
      if (key) cables.set(key, edges[edges.length - 1]);
    });
  };
  for (const [value, users] of readValues(nodes)) {
    const made = graph.values[value];
    const home = numbers.get(made.node);
    const place = made.node.outputs.indexOf(value);
    users.sort((a, b) => layers[numbers.get(a)] - layers[numbers.get(b)]);
    let [open, start] = [home, home === undefined ? 0 : layers[home]];
    const isLocal = isLight(made) || users.length > 8;
    users.forEach((user, number) => {
      const layer = layers[numbers.get(user)];
      const isAlone = isLocal && number > 0 && layer !== start;
      if (open === undefined || layer - start > (made.node.isConstant ? 1 : reach) || isAlone) {
        open = boxes.push(pillBox(view, made, path, boxes.length, flip)) - 1;
        start = layer - 1;
      }
      join(
        open,
        open === home && boxes[home].chips.length > 1 ? boxes[home].chips[place].x : 0,
        user,
        value,
      );
    });
  }
  const size = layOut(boxes, edges, view.aspect, gap || (edges.length ? 44 : 12));
  const plane = { boxes, edges, w: size.w, h: size.h };
  if (flip) turn(plane);
  return plane;
}

// Values that say little by where they come from: scalars, constants and what is broadcast of them.
function isLight(value) {
  const { node } = value;
  const [first] = node.operands;
  const isSpread =
    node.op === "broadcast_to" && first >= 0 && node.graph.values[first].node.isConstant;
  return node.isConstant || isSpread || (node.kind === "node" && value.type.text.endsWith("[]"));
}

function directEdges(graph, nodes, numbers, isLeftOut = (_value) => false) {
  const edges = [];
  for (const node of nodes)
    for (const value of node.operands) {
      const from = value < 0 ? undefined : numbers.get(graph.values[value].node);
      if (from === undefined || isLeftOut(graph.values[value])) continue;
      edges.push({ from, to: numbers.get(node) });
    }
  return edges;
}

// Per value that the nodes read: those that read it, each once.
function readValues(nodes) {
  const read = new Map();
  for (const node of nodes)
    for (const value of new Set(node.operands)) {
      if (value < 0) continue;
      if (!read.has(value)) read.set(value, []);
      read.get(value).push(node);
    }
  return read;
}

function port(box, place, count) {
  return ((place + 1) / (count + 1) - 0.5) * (count > 1 ? box.w * 0.86 : 0);
}

// Backward cards flow upwards, towards the arguments.
function turn(plane) {
  for (const box of plane.boxes) box.y = plane.h - box.y - box.h;
  for (const edge of plane.edges) edge.points = edge.points.map(([x, y]) => [x, plane.h - y]);
}

function nodeBox(view, node, path, flip) {
  const { measure } = view;
  const id = `${path}/${node.index}`;
  const box = { id, kind: "node", node, path, flip, below: 0, chips: [], x: 0, y: 0 };
  if (node.kind !== "node" || node.isConstant) {
    box.kind = node.kind === "node" ? "constant" : node.kind;
    if (node.kind === "argument") box.rank = node.index;
    box.text = node.isConstant ? clipped(constantText(node), 22) : clipped(bare(node.name), 30);
    const [value] = node.outputs; // a result has none
    box.type = value === undefined ? "" : clipped(node.graph.values[value].type.text, 30);
    box.w = pillWidth(measure, box);
    box.h = BOX.pill;
    return box;
  }
  box.text = node.op;
  box.mark = node.isBackward ? "∂" : node.place.roles.includes("jvp") ? "δ" : "";
  box.detail = detailText(node);
  const first =
    measure(box.text, FONT.op) + measure(node.name, FONT.name) + (box.mark ? 16 : 0) + 14;
  const least = measure(box.detail, FONT.small);
  box.chips = chipsOf(measure, node);
  box.isCable = node.outputs.length > CHIPS;
  const chips = sum(box.chips, (chip) => chip.w + 6);
  box.w = Math.max(84, first + 2 * BOX.pad, least + 2 * BOX.pad, chips, node.operands.length * 7);
  box.h = box.detail ? BOX.two : BOX.one;
  box.below = box.chips.length ? BOX.chip : 0;
  if (node.calls.length && view.opened.has(id)) openBox(view, box, id);
  let from = 3 - chips / 2;
  for (const chip of box.chips) {
    chip.x = from + chip.w / 2;
    from += chip.w + 6;
  }
  return box;
}

// The graphs that a node holds, side by side: several have frames, which say what each is.
function openBox(view, box, id) {
  const { measure } = view;
  const { calls } = box.node;
  const isOne = calls.length === 1;
  const top = BOX.header + (isOne ? BOX.inside : BOX.label);
  const parts = calls.map((call, number) => {
    const plane = graphPlane(view, call.graph, partPath(id, number));
    const label = isOne ? "" : `${call.attribute} @${clipped(call.graph.name, 40)}`;
    return { plane, label, w: Math.max(plane.w, measure(label, FONT.code)) };
  });
  const gap = 3 * BOX.inside;
  const w = sum(parts, (part) => part.w + gap) - gap;
  const h = parts.reduce((most, { plane }) => Math.max(most, plane.h), 0);
  box.isOpen = true;
  box.w = Math.max(box.w, w + (isOne ? 2 : 4) * BOX.inside);
  box.h = top + h + (isOne ? 1 : 2) * BOX.inside;
  let x = (box.w - w) / 2;
  box.frames = [];
  box.inside = parts.map((part) => {
    const { plane, label } = part;
    const frame = { x: x - BOX.inside, y: BOX.header, w: part.w + 2 * BOX.inside, label };
    if (!isOne) box.frames.push({ ...frame, h: box.h - BOX.header - BOX.inside });
    const placed = { plane, x: x + (part.w - plane.w) / 2, y: top + (h - plane.h) / 2 };
    x += part.w + gap;
    return placed;
  });
}

// Where one of the graphs that a node holds is drawn.
const partPath = (id, number) => `${id}:${number}`;

function detailText(node) {
  if (node.calls.length) {
    const names = node.calls.map(({ graph }) => `@${clipped(graph.name, 24)}`).join(" ");
    return `${names} · ${counted(sum(node.calls, ({ graph }) => graph.count), "node")}`;
  }
  return clipped(node.attributes.map(([name, text]) => `${name}=${text}`).join(", "), 32);
}

// The types of what a node gives; many of them are one chip, and go to their user as one cable.
function chipsOf(measure, node) {
  const chip = (text) => ({ text, w: measure(text, FONT.small) + 10, x: 0 });
  if (node.outputs.length > CHIPS) return [chip(counted(node.outputs.length, "value"))];
  return node.outputs.map((value) => chip(clipped(node.graph.values[value].type.text, 30)));
}

function pillBox(view, value, path, number, flip) {
  const { node } = value;
  const box = { kind: "pill", node, value, path, flip, below: 0, chips: [], x: 0, y: 0 };
  box.id = `${path}/${node.index}@${number}`;
  box.text = node.isConstant ? clipped(constantText(node), 22) : clipped(bare(value.name), 30);
  box.type = clipped(value.type.text, 30);
  box.w = pillWidth(view.measure, box);
  box.h = BOX.pill;
  return box;
}

function pillWidth(measure, box) {
  const type = box.type ? measure(box.type, FONT.small) + 8 : 0;
  return Math.max(38, measure(box.text, FONT.name) + type + 2 * BOX.pad);
}

// The name of a value as a pill shows it: arguments by name alone, others with their sign.
const bare = (name) => (/^%\d/.test(name) ? name : name.replace(/^%/, ""));
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const wordFor = (number, one, many = `${one}s`) => (number === 1 ? one : many);
const counted = (number, word) => `${number.toLocaleString("en")} ${wordFor(number, word)}`;

// Groups.

function groupsPlane(view, graph, path) {
  const tree = groupsOf(graph, view.mode);
  return levelPlane(view, tree, null, path);
}

const cardId = (path, group) => `${path}/g${group.key}`;

function levelPlane(view, tree, parent, path) {
  const cards = (parent ? parent.children : tree.tops).map((group) =>
    cardOf(view, tree, group, path),
  );
  const columns = arrange(view, cards, parent ? cardId(path, parent) : path);
  const flows = [...(tree.flows.get(parent)?.values() || [])];
  const { wires, w, h } = wired(flows, cards, columns, tree.graph, view.measure);
  return { boxes: cards, edges: [], wires, w, h };
}

function cardOf(view, tree, group, path) {
  const { measure } = view;
  const { title, brief, isBackward, families } = group;
  const card = { kind: "card", id: cardId(path, group), path, group, title, isBackward };
  group.within ||= nodesIn(group);
  Object.assign(card, { families, graph: tree.graph, nodes: group.within, below: 0, chips: [] });
  card.brief = brief || title;
  card.isOpen = view.unfolded.has(card.id);
  card.code = codeOn(group, card.isOpen);
  card.note = noteOf(group);
  const head = measure(title, FONT.title) + measure(card.note, FONT.name) + 72;
  const text = measure(card.code, FONT.code) + 2 * CARD.pad;
  card.w = Math.min(CARD.widest, Math.max(CARD.least, head, text));
  card.h = CARD.closed + (card.code ? CARD.code : 0);
  if (card.isOpen) fillCard(view, tree, card, path);
  return card;
}

// The code on a card. What the cards around it say is not repeated, nor is what an open card holds.
function codeOn(group, isOpen) {
  const around = codeAround(group.parent);
  const code = isOpen ? codeAround(group) : group.code;
  return code === around ? "" : code;
}

function codeAround(group) {
  if (!group) return "";
  return group.common || (group.isList ? codeAround(group.parent) : group.code);
}

// How many nodes are within, and how many of them are derived.
function noteOf({ forward, derived, values, isArguments }) {
  if (isArguments) return counted(values, "value");
  if (!derived) return counted(forward, "node");
  return forward ? `${forward} + ${derived} \u2202` : `${derived} \u2202`;
}

function fillCard(view, tree, card, path) {
  const { group } = card;
  const parts = group.children.length
    ? [{ plane: levelPlane(view, tree, group, path), isRight: false }]
    : halfPlanes(view, tree.graph, group, path);
  const top = CARD.header + (card.code ? CARD.code : 0) + 6;
  const h = parts.reduce((most, { plane }) => Math.max(most, plane.h), 0);
  const w = sum(parts, ({ plane }) => plane.w) + (parts.length - 1) * 3 * CARD.pad;
  card.w = Math.max(Math.min(card.w, CARD.widest), w + 2 * CARD.pad);
  card.h = top + h + CARD.pad;
  let x = (card.w - w) / 2;
  card.inside = parts.map(({ plane, isRight }) => {
    const part = { plane, isRight, x, y: top + (h - plane.h) / 2 };
    x += plane.w + 3 * CARD.pad;
    return part;
  });
  // The ground on which the derived half lies.
  const [, right] = card.inside;
  if (right) {
    const left = right.x - 1.2 * CARD.pad;
    card.derivedGround = { x: left, y: top - 8, w: card.w - left - 8, h: h + CARD.pad };
  }
}

// Forward goes down on the left, and derived goes up on the right.
function halfPlanes(view, graph, group, path) {
  const left = group.nodes.filter((node) => !isOnRight(node));
  const right = group.nodes.filter(isOnRight);
  return [left, right]
    .map((nodes, side) => ({ nodes, isRight: side === 1 }))
    .filter(({ nodes }) => nodes.length)
    .map(({ nodes, isRight }) => {
      const gap = group.isArguments ? 12 : 26;
      const options = { reach: 8, flip: isRight, gap };
      return { plane: flowPlane(view, graph, nodes, path, options), isRight };
    });
}

// Columns that are read like those of a newspaper, as many as let the cards be largest. While cards
// are opened and closed, cards keep their columns, unless that makes them much smaller.
function arrange(view, cards, level) {
  const options = [];
  for (let count = 1; count <= Math.min(cards.length, 12); count++)
    options.push(columnsOf(cards, heightFor(cards, count)));
  const before = view.columns.get(level);
  if (before) options.push(columnsBefore(cards, before));
  let best = null;
  for (const columns of options) {
    const w = sum(columns, (column) => column.w + 70);
    const h = columns.reduce((most, column) => Math.max(most, column.h), 0);
    const zoom = zoomToFit(view.room, { w, h }) * (columns.isKept ? CARD.keep : 1);
    if (!best || zoom > best.zoom * 1.02) best = { zoom, columns };
  }
  view.columns.set(
    level,
    best.columns.map((column) => column.cards.length),
  );
  for (const [number, column] of best.columns.entries()) {
    const closed = column.cards.filter((card) => !card.isOpen);
    const widest = closed.reduce((most, card) => Math.max(most, card.w), 0);
    for (const card of closed) card.w = widest;
    let y = 0;
    column.cards.forEach((card, place) => {
      Object.assign(card, { y, column: number, place });
      y += card.h + CARD.gapY;
    });
  }
  return best.columns;
}

function columnsBefore(cards, counts) {
  let from = 0;
  const columns = counts.map((count) => columnOf(cards.slice(from, (from += count))));
  return Object.assign(columns, { isKept: true });
}

const columnOf = (cards) => ({
  cards,
  w: cards.reduce((most, card) => Math.max(most, card.w), 0),
  h: sum(cards, (card) => card.h + CARD.gapY) - CARD.gapY,
});

function columnsOf(cards, most) {
  const columns = [];
  for (const card of cards) {
    let column = columns[columns.length - 1];
    if (!column || column.h + CARD.gapY + card.h > most + 0.01)
      columns.push((column = columnOf([])));
    column.cards.push(card);
    column.h += CARD.gapY + card.h;
    column.w = Math.max(column.w, card.w);
  }
  return columns;
}

// The least height of columns with which no more than `count` of them are needed.
function heightFor(cards, count) {
  let low = cards.reduce((most, card) => Math.max(most, card.h), 0);
  let high = sum(cards, (card) => card.h + CARD.gapY);
  for (let step = 0; step < 24; step++) {
    const middle = (low + high) / 2;
    if (columnsOf(cards, middle).length > count) low = middle;
    else high = middle;
  }
  return high;
}
