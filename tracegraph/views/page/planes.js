// From graphs to what is drawn: boxes, pills, cards and the edges between them.
//
// A card holds what one line of the user's made, in one run. A value that was made far away, or on
// another card, is shown by a pill beside its user instead of an edge across the page.

const FONT = {
  op: { size: 13, weight: 600 },
  name: { size: 11, mono: true },
  small: { size: 10.5, mono: true },
  title: { size: 13, weight: 600 },
  code: { size: 12, mono: true },
};
const BOX = { pad: 12, one: 30, two: 46, pill: 24, header: 34, inside: 18, chip: 20 };
const CARD = {
  header: 40,
  closed: 52,
  pad: 18,
  gapX: 130,
  gapY: 46,
  widest: 460,
  most: 260,
  joined: 120,
};

function buildScene(view) {
  const plane = graphPlane(view, view.graph, "");
  const scene = {
    boxes: [],
    edges: [],
    bundles: [],
    byId: new Map(),
    homes: new Map(),
    pills: new Map(),
  };
  flatten(scene, plane, 0, 0, "paper");
  return Object.assign(scene, { w: plane.w, h: plane.h });
}

function flatten(scene, plane, x, y, ground) {
  for (const box of plane.boxes) {
    Object.assign(box, { x: box.x + x, y: box.y + y, ground });
    scene.boxes.push(box);
    scene.byId.set(box.id, box);
    if (box.node && box.kind !== "card") {
      const table = box.kind === "pill" ? scene.pills : scene.homes;
      if (!table.has(box.node)) table.set(box.node, []);
      table.get(box.node).push(box);
    }
    const inner = (box.node || box).isBackward ? "backward" : "surface";
    if (box.child) flatten(scene, box.child, box.x + box.childX, box.y + box.childY, inner);
  }
  const moved = ([a, b]) => [a + x, b + y];
  for (const edge of plane.edges) {
    scene.edges.push({ ...edge, points: edge.points.map(moved), ...bounds(edge.points, x, y) });
  }
  for (const bundle of plane.bundles || [])
    scene.bundles.push({
      ...bundle,
      curve: bundle.curve.map(moved),
      ...bounds(bundle.curve, x, y),
    });
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

// A called graph is drawn by lines only where it is large enough to need it.
function graphPlane(view, graph, path) {
  const byLines = view.mode === "lines" && (!path || graph.count > 40);
  return byLines
    ? cardsPlane(view, graph, path)
    : flowPlane(view, graph, graph.nodes, path, { reach: 9 });
}

// The nodes as a layered graph. Values from outside, constants that have several users and values
// that come from more than `reach` layers above are pills.
function flowPlane(view, graph, nodes, path, { reach, flip = false, gap = null }) {
  const boxes = nodes.map((node) => nodeBox(view, node, path, flip));
  const numbers = new Map(nodes.map((node, number) => [node, number]));
  const layers = layersOf(boxes, directEdges(graph, nodes, numbers));
  const edges = [];
  const join = (from, fromX, user, value) => {
    const to = numbers.get(user);
    user.operands.forEach((operand, place) => {
      if (operand !== value) return;
      const toX = port(boxes[to], place, user.operands.length);
      edges.push({
        from,
        fromX,
        to,
        toX,
        value,
        graph,
        fromBox: boxes[from],
        toBox: boxes[to],
        flip,
      });
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
        open === home && boxes[home].chips.length ? boxes[home].chips[place].x : 0,
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

function directEdges(graph, nodes, numbers) {
  const edges = [];
  for (const node of nodes)
    for (const value of node.operands) {
      const from = value < 0 ? undefined : numbers.get(graph.values[value].node);
      if (from !== undefined) edges.push({ from, to: numbers.get(node) });
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
    box.text = node.isConstant ? clipped(constantText(node), 22) : clipped(bare(node.name), 30);
    box.type =
      node.kind === "argument" ? clipped(node.graph.values[node.outputs[0]].type.text, 30) : "";
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
  box.chips = node.outputs.map((value) => chipOf(measure, node.graph.values[value], node));
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

function openBox(view, box, id) {
  const shown = box.node.calls[Math.min(view.shown.get(id) || 0, box.node.calls.length - 1)];
  box.child = graphPlane(view, shown.graph, id);
  box.isOpen = true;
  box.w = Math.max(box.w, box.child.w + 2 * BOX.inside);
  box.h = BOX.header + BOX.inside + box.child.h + BOX.inside;
  box.childX = (box.w - box.child.w) / 2;
  box.childY = BOX.header + BOX.inside;
}

function detailText(node) {
  if (node.calls.length) {
    const { graph } = node.calls[0];
    return `@${clipped(graph.name, 24)} · ${counted(graph.count, "node")}`;
  }
  return clipped(node.attributes.map(([name, text]) => `${name}=${text}`).join(", "), 32);
}

function chipOf(measure, value, node) {
  const text = clipped(value.type.text, 30);
  return { text, value: value.index, node, w: measure(text, FONT.small) + 10, x: 0 };
}

function pillBox(view, value, path, number, flip) {
  const { node } = value;
  const box = { kind: "pill", node, value, path, flip, below: 0, chips: [], x: 0, y: 0 };
  box.id = `${path}/${node.index}@${number}`;
  box.text = node.isConstant ? clipped(constantText(node), 22) : clipped(bare(value.name), 30);
  box.type = node.isConstant ? "" : clipped(value.type.text, 30);
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
const counted = (number, word) =>
  `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

// Cards.

function cardsPlane(view, graph, path) {
  const cards = cardsOf(graph);
  for (const card of cards) {
    card.id = `${path}/card${card.number}`;
    card.isOpen = !view.closed.has(card.id);
    card.path = path;
    fillCard(view, graph, card, path);
  }
  const columns = arrange(cards, view.aspect);
  const bundles = bundlesOf(graph, cards, columns, view.measure);
  const [left, top] = [0, 1].map((axis) =>
    Math.min(0, ...bundles.map((bundle) => Math.min(...bundle.curve.map((point) => point[axis])))),
  );
  for (const card of cards) [card.x, card.y] = [card.x - left, card.y - top];
  for (const bundle of bundles) bundle.curve = bundle.curve.map(([x, y]) => [x - left, y - top]);
  const w = cards.reduce((most, card) => Math.max(most, card.x + card.w), 0);
  const h = cards.reduce((most, card) => Math.max(most, card.y + card.h), 0);
  return { boxes: cards, edges: [], bundles, w, h };
}

// Runs of nodes of one line, role and scope. Constants go where they are first read, results
// where they are made, arguments together with those of their scope.
function cardsOf(graph) {
  const cards = [];
  const home = new Map();
  const start = (key, fields) => {
    const card = {
      kind: "card",
      key,
      number: cards.length,
      nodes: [],
      below: 0,
      chips: [],
      ...fields,
    };
    cards.push(card);
    return card;
  };
  const put = (card, node) => {
    card.nodes.push(node);
    home.set(node, card);
  };
  const byScope = new Map();
  for (const node of graph.nodes.filter((node) => node.kind === "argument")) {
    if (!byScope.has(node.scope))
      byScope.set(
        node.scope,
        start("arguments", { title: "Arguments", code: node.scope, isArguments: true }),
      );
    put(byScope.get(node.scope), node);
  }
  let last = null;
  for (const run of joinedRuns(runsOf(graph))) {
    last = start(run.key, titleOf(run));
    for (const node of run.nodes) put(last, node);
  }
  last ||= start("", { title: "Results", code: "", isBackward: false });
  for (const node of graph.nodes) {
    if (home.has(node)) continue;
    if (node.kind === "result") {
      const maker = graph.values[node.operands[0]]?.node;
      const card = maker && maker.kind === "node" ? home.get(maker) : null;
      put(card || last, node);
    } else {
      const user = graph.values[node.outputs[0]].users.find((user) => user.node.kind === "node");
      put((user && home.get(user.node)) || last, node);
    }
  }
  for (const card of cards) card.nodes.sort((a, b) => a.index - b.index);
  graph.cardOf = home;
  return cards.filter((card) => card.nodes.length);
}

// Neighbours in the order of the nodes that have their line, roles and scope in common.
function runsOf(graph) {
  const runs = [];
  for (const node of graph.nodes) {
    if (node.kind !== "node" || node.isConstant) continue;
    const { place, isBackward } = node;
    const key = [lineKey(place), place.roles.join(" "), node.scope].join("\n");
    const last = runs[runs.length - 1];
    if (last && last.key === key) last.nodes.push(node);
    else runs.push({ key, isBackward, nodes: [node], places: [place] });
  }
  return runs;
}

// A long loop that was unrolled makes very many runs: then a card holds whole rounds of the loop.
function joinedRuns(runs) {
  if (runs.length <= CARD.most) return runs;
  const target = sum(runs, (run) => run.nodes.length) / CARD.joined;
  const joined = [];
  for (const run of runs) {
    const last = joined[joined.length - 1];
    const size = last ? last.nodes.length : 0;
    const isFull = size >= 4 * target || (size >= target && run.key === last.key);
    if (!last || isFull || last.isBackward !== run.isBackward) {
      joined.push({ ...run, nodes: [...run.nodes], places: [...run.places] });
    } else {
      last.nodes.push(...run.nodes);
      last.places.push(...run.places);
    }
  }
  return joined;
}

function titleOf({ places, isBackward, nodes }) {
  const [place] = places;
  const lines = places.filter((other) => other.file === place.file).map((other) => other.line);
  const [first, last] = [lines, lines].map((all, end) =>
    all.reduce((a, b) => (end ? Math.max(a, b) : Math.min(a, b))),
  );
  const title =
    first < last ? `${place.file}:${first}\u2013${last}` : placeText(place) || "no known line";
  const code = [...new Set(places.map((other) => other.code).filter(Boolean))].join("  \u00b7  ");
  const scope = nodes[0].scope;
  return { title: scope ? `${scope}  ${title}` : title, code, place, isBackward };
}

function fillCard(view, graph, card, path) {
  const { measure } = view;
  card.families = familiesOf(card.nodes);
  card.count = card.nodes.filter((node) => node.kind === "node").length;
  card.note = card.isArguments ? counted(card.nodes.length, "value") : counted(card.count, "node");
  card.roles = card.place ? card.place.roles.join(" ") : "";
  const head =
    measure(card.title, FONT.title) +
    measure(card.note, FONT.name) +
    measure(card.roles, FONT.name) +
    76;
  const code = measure(card.code || "", FONT.code) + 2 * CARD.pad;
  const least = Math.min(CARD.widest, Math.max(220, head, code));
  if (!card.isOpen) return void Object.assign(card, { w: least, h: CARD.closed + 12, child: null });
  const flip = !!card.isBackward;
  card.child = flowPlane(view, graph, card.nodes, path, {
    reach: 8,
    flip,
    gap: card.isArguments ? 12 : 26,
  });
  card.w = Math.max(least, card.child.w + 2 * CARD.pad);
  card.h = CARD.header + (card.code ? 18 : 0) + CARD.pad + card.child.h + CARD.pad;
  card.childX = (card.w - card.child.w) / 2;
  card.childY = card.h - CARD.pad - card.child.h;
}

function familiesOf(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(node.family, (counts.get(node.family) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// Columns as a snake: forward runs go down, backward runs go up beside them, so that what belongs
// to one line stands side by side. Long runs are broken into several columns.
function arrange(cards, aspect) {
  const area = sum(cards, (card) => (card.w + CARD.gapX) * (card.h + CARD.gapY));
  const limit = Math.max(Math.sqrt(area / aspect), ...cards.map((card) => card.h)) * 1.3;
  const columns = [];
  let column = null;
  for (const card of cards) {
    const isUp = !!card.isBackward;
    if (!column || column.isUp !== isUp || column.h + card.h > limit) {
      column = { isUp, cards: [], h: 0, isFirst: !column || column.isUp !== isUp };
      columns.push(column);
    }
    column.cards.push(card);
    column.h += card.h + CARD.gapY;
  }
  let x = 0;
  columns.forEach((column, number) => {
    column.w = column.cards.reduce((most, card) => Math.max(most, card.w), 0);
    stack(column, columns[number - 1]);
    column.cards.forEach((card, place) => {
      card.x = x + (column.w - card.w) / 2;
      Object.assign(card, { column: number, place });
    });
    x += column.w + CARD.gapX;
  });
  const top = cards.reduce((least, card) => Math.min(least, card.y), Infinity);
  for (const card of cards) card.y -= top;
  return columns;
}

function stack(column, before) {
  const top = before ? before.cards.reduce((least, card) => Math.min(least, card.y), Infinity) : 0;
  if (!column.isUp) {
    let y = top;
    for (const card of column.cards) {
      card.y = y;
      y += card.h + CARD.gapY;
    }
    return;
  }
  const beside = new Map();
  for (const card of before ? before.cards : [])
    beside.set(lineKey(card.place || { file: "" }), card);
  const row = [...column.cards].reverse().map((card) => {
    const match = beside.get(lineKey(card.place));
    return { card, w: card.h, match };
  });
  let y = top;
  for (const cell of row) {
    const { match } = cell;
    cell.wish = match ? match.y + match.h / 2 : y + cell.w / 2;
    cell.weight = match ? 1 : 0.05;
    y += cell.w + CARD.gapY;
  }
  settleRow(row, () => CARD.gapY);
  for (const cell of row) cell.card.y = cell.x - cell.w / 2;
}

// What goes from card to card, as one curve for each pair. Arguments and constants have pills.
function bundlesOf(graph, cards, columns, measure) {
  const bundles = new Map();
  for (const card of cards)
    for (const node of card.nodes)
      for (const value of node.operands) {
        const from = value < 0 ? null : graph.cardOf.get(graph.values[value].node);
        if (!from || from === card || from.isArguments || graph.values[value].node.isConstant)
          continue;
        const key = `${from.number} ${card.number}`;
        if (!bundles.has(key)) bundles.set(key, { from, to: card, values: new Set(), graph });
        bundles.get(key).values.add(value);
      }
  const all = [...bundles.values()];
  const ends = new Map();
  const meet = (bundle, end, card, side, other) => {
    const key = `${card.number} ${side}`;
    if (!ends.has(key)) ends.set(key, []);
    ends.get(key).push({ bundle, end, card, side, at: other.y + other.h / 2 });
  };
  for (const bundle of all) {
    const [from, to] = [bundle.from, bundle.to];
    const isUp = columns[from.column].isUp;
    bundle.isNext = from.column === to.column && Math.abs(from.place - to.place) === 1;
    const side = from.column === to.column ? (bundle.isNext ? null : "left") : null;
    const [out, into] = bundle.isNext
      ? isUp
        ? ["top", "bottom"]
        : ["bottom", "top"]
      : side
        ? [side, side]
        : from.column < to.column
          ? ["right", "left"]
          : ["left", "right"];
    Object.assign(bundle, { out, into });
    meet(bundle, "start", from, out, to);
    meet(bundle, "stop", to, into, from);
  }
  for (const list of ends.values()) spread(list);
  for (const bundle of all) {
    bundle.curve = bundleCurve(bundle);
    const [only] = bundle.values;
    const text =
      bundle.values.size === 1 ? graph.values[only].type.text : `${bundle.values.size} values`;
    bundle.text = clipped(text, 24);
    bundle.textWidth = measure(bundle.text, FONT.small) + 12;
  }
  return all;
}

function spread(list) {
  list.sort((a, b) => a.at - b.at);
  list.forEach(({ bundle, end, card, side }, place) => {
    const share = (place + 1) / (list.length + 1);
    const isFlat = side === "left" || side === "right";
    bundle[end] = isFlat
      ? [card.x + (side === "right" ? card.w : 0), card.y + card.h * (0.15 + 0.7 * share)]
      : [card.x + card.w * (0.3 + 0.4 * share), card.y + (side === "bottom" ? card.h : 0)];
  });
}

// Four points of a cubic curve.
function bundleCurve({ start, stop, out, into, isNext }) {
  const [dx, dy] = [Math.abs(stop[0] - start[0]), Math.abs(stop[1] - start[1])];
  const reach = isNext ? dy / 2 : out === into ? 36 + Math.min(60, dy / 14) : Math.max(48, dx / 2);
  const away = { top: [0, -reach], bottom: [0, reach], left: [-reach, 0], right: [reach, 0] };
  const move = ([x, y], [a, b]) => [x + a, y + b];
  return [start, move(start, away[out]), move(stop, away[into]), stop];
}
