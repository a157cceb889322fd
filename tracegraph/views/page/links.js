// What was derived of what. Where the graph was traced here it says so: the nodes that the rules of
// a node made have its origin. Where it was read from a text, forward and derived nodes of one
// instruction belong together, in one graph and across the functions of the page, and within a graph
// each application of it by itself.

const CROWD = 40; // a value that more nodes read than this says nothing of whom it belongs to
const FEW = 3; // forward nodes of one instruction that are not told apart

// What is called by derived nodes alone is derived itself: the backward function of a call.
function markDerived(graphs, entry) {
  for (const graph of [...graphs].reverse()) {
    const isCalled = graph !== entry && graph.callers.length > 0;
    graph.isDerived =
      isCalled && graph.callers.every((node) => node.isBackward || node.graph.isDerived);
    graph.depth = isCalled ? 1 + Math.min(...graph.callers.map((node) => node.graph.depth)) : 0;
  }
}

// The instruction where it is known, or else the line.
function instructionKey(place) {
  if (!place.file) return "";
  return `${place.number}:${place.line}:${place.instruction}`;
}

function linkDerived(graphs) {
  const known = new Set(graphs.filter((graph) => linkByOrigin(graphs, graph)));
  linkByPlace(graphs, (graph) => !known.has(graph));
  for (const graph of graphs) {
    for (const node of graph.nodes) for (const primal of node.primals) primal.derived.push(node);
  }
}

// Links the derived nodes of a graph to those of their origin, and says whether any has one.
function linkByOrigin(graphs, graph) {
  const derived = graph.nodes.filter((node) => isDerivedNode(node) && node.origin);
  const byOrigin = (inside) =>
    groupedBy(
      inside.flatMap((one) => one.nodes.filter((node) => isForward(node) && node.origin)),
      (node) => node.origin,
    );
  const own = byOrigin([graph]);
  const all = byOrigin(graphs.filter((other) => other !== graph));
  let isAny = false;
  for (const node of derived) {
    const primals = own.get(node.origin) || all.get(node.origin) || [];
    link(node, primals);
    isAny = isAny || primals.length > 0;
  }
  return isAny;
}

function linkByPlace(graphs, isWanted) {
  const everywhere = new Map();
  for (const graph of graphs) {
    graph.forwardOf = groupedBy(graph.nodes.filter(isForward), (n) => instructionKey(n.place));
    for (const [key, nodes] of graph.forwardOf)
      everywhere.set(key, [...(everywhere.get(key) || []), ...nodes]);
  }
  for (const graph of graphs.filter(isWanted)) {
    for (const [key, nodes] of groupedBy(graph.nodes.filter(isDerivedNode), (n) =>
      instructionKey(n.place),
    )) {
      const own = graph.forwardOf.get(key) || [];
      if (own.length) linkBlocks(graph, blocksOf(own), blocksOf(nodes));
      if (own.length && !graph.isDerived) continue;
      const abroad = (everywhere.get(key) || []).filter((node) => node.graph !== graph);
      for (const node of nodes) link(node, sameScope(abroad, node));
    }
  }
}

const isForward = (node) => node.kind === "node" && !node.isBackward && !!node.place.file;
const isDerivedNode = (node) => node.kind === "node" && node.isBackward && !!node.place.file;

function groupedBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

// Copies of one function in several scopes are told apart by them, where they have any.
function sameScope(nodes, derived) {
  const found = nodes.filter((node) => node.scope === derived.scope);
  return derived.scope && found.length ? found : nodes;
}

function link(derived, primals) {
  for (const node of primals) if (!derived.primals.includes(node)) derived.primals.push(node);
}

// One instruction is applied several times in a loop, or in a function that is called in place: a
// block is what one application made, in one go.
function blocksOf(nodes) {
  const blocks = [];
  let last = null;
  for (const node of nodes) {
    const isNext = last && last.scope === node.scope && onlyConstants(last, node);
    if (isNext) blocks[blocks.length - 1].push(node);
    else blocks.push([node]);
    last = node;
  }
  return blocks;
}

function onlyConstants(from, to) {
  const { nodes } = from.graph;
  for (let i = from.index + 1; i < to.index; i++) if (!nodes[i].isConstant) return false;
  return true;
}

// A derived block reads what its forward block made or read. Where that does not tell, the last
// application is the first to be derived of.
function linkBlocks(graph, forward, derived) {
  const home = new Map();
  forward.forEach((block, number) => block.forEach((node) => home.set(node, number)));
  const chosen = derived.map((block) => elected(graph, forward, home, block));
  const isFree = (number) => !chosen.includes(number);
  const unclaimed = forward
    .map((_, number) => number)
    .filter(isFree)
    .reverse();
  const open = derived.map((_, number) => number).filter((number) => chosen[number] < 0);
  open.forEach((number, place) => {
    if (open.length === unclaimed.length) chosen[number] = unclaimed[place];
    else if (forward.length === 1) chosen[number] = 0;
    else chosen[number] = nearestChoice(chosen, number, forward.length);
  });
  derived.forEach((block, number) => linkNodes(graph, forward[chosen[number]], block));
}

// An instruction that made much, such as the call of a whole model, is told apart by what is read:
// a derived node belongs to forward nodes that made or read what it reads. One that reads nothing of
// theirs goes with the derived node before it.
function linkNodes(graph, forward, block) {
  if (forward.length <= FEW) return block.forEach((node) => link(node, forward));
  const inside = new Set(forward);
  let last = null;
  for (const node of block) {
    const values = node.operands.map((value) => graph.values[value]).filter(Boolean);
    const near = values
      .filter((value) => !value.node.isConstant && value.users.length <= CROWD)
      .flatMap((value) => [value.node, ...value.users.map((user) => user.node)])
      .filter((other) => inside.has(other));
    if (near.length) last = near;
    link(node, last || forward);
  }
}

function nearestChoice(chosen, number, count) {
  for (let reach = 1; reach < chosen.length; reach++)
    for (const other of [number + reach, number - reach])
      if (chosen[other] >= 0) return chosen[other];
  return count - 1;
}

function elected(graph, forward, home, block) {
  const inScope = forward.flatMap(([node], number) =>
    node.scope === block[0].scope ? [number] : [],
  );
  if (forward.length === 1 || (block[0].scope && inScope.length === 1)) return inScope[0] || 0;
  const votes = new Map();
  const vote = (node, weight) => {
    const number = home.get(node);
    if (number === undefined || (inScope.length && !inScope.includes(number))) return;
    votes.set(number, (votes.get(number) || 0) + weight);
  };
  for (const node of block)
    for (const operand of node.operands) {
      const value = graph.values[operand];
      if (!value || value.node.isConstant || value.users.length > CROWD) continue;
      vote(value.node, 2);
      for (const user of value.users) vote(user.node, 1);
    }
  const best = [...votes].sort((a, b) => b[1] - a[1]);
  return best.length && (best.length === 1 || best[0][1] > best[1][1]) ? best[0][0] : -1;
}

// What belongs to a node on the other side: of a forward node what was derived of it, and of a
// derived node what that was.
function counterparts(node) {
  return node.isBackward ? node.primals : node.derived;
}

// The calls that lead from a graph down to another one, outermost first; null where none do.
function callsTo(from, to) {
  const seen = new Set([to]);
  let ends = [{ graph: to, way: [] }];
  while (ends.length) {
    const next = [];
    for (const { graph, way } of ends) {
      if (graph === from) return way;
      for (const caller of graph.callers) {
        if (seen.has(caller.graph)) continue;
        seen.add(caller.graph);
        next.push({ graph: caller.graph, way: [{ node: caller, callee: graph }, ...way] });
      }
    }
    ends = next;
  }
  return null;
}
