// The groups of a graph: a tree of boxes that fold. A leaf holds nodes, forward ones on its left
// and what was derived of them on its right; any other group holds groups.
//
// Lines and name scopes are the user's; what a loop repeats becomes rounds, which are numbered, and
// what is still too long is cut into ranges, so that no group is larger than a screen.

const GROUP = { leaf: 60, round: 30, least: 12, most: 14, period: 160, rounds: 3, part: 4 };

const LONG_NAME = 24; // of longer names the end says most

// The tree for a mode, made once: `{tops, leafOf, flows}`.
function groupsOf(graph, mode) {
  graph.groups ||= {};
  return (graph.groups[mode] ||= groupTree(graph, mode));
}

function groupTree(graph, mode) {
  const nodes = graph.nodes.filter((node) => node.kind === "node" && !node.isConstant);
  const made =
    mode === "scopes"
      ? scopeGroups(nodes, "")
      : mode === "lines"
        ? lineGroups(nodes)
        : chunked(stretchGroups(nodes));
  const tops = [...argumentGroups(graph), ...made];
  if (!tops.length) tops.push(leaf({ title: "Results", code: "" }, []));
  const tree = { graph, tops, leafOf: new Map(), all: [] };
  number(tree, tops, null, "");
  place(tree);
  finish(tree);
  return tree;

  function number(tree, groups, parent, path) {
    groups.forEach((group, at) => {
      Object.assign(group, { parent, at, key: path ? `${path}.${at}` : String(at) });
      tree.all.push(group);
      if (group.children.length) number(tree, group.children, group, group.key);
      else for (const node of group.nodes) tree.leafOf.set(node, group);
    });
  }
}

function leaf(title, nodes) {
  return { code: "", children: [], nodes, ...title };
}

function inner(title, children) {
  return { code: "", nodes: [], ...title, children };
}

function argumentGroups(graph) {
  const nodes = graph.nodes.filter((node) => node.kind === "argument");
  const parts = [];
  for (let at = 0; at < nodes.length; at += GROUP.leaf) {
    const part = nodes.slice(at, at + GROUP.leaf);
    const brief = nodes.length > GROUP.leaf ? roundRange(at + 1, at + part.length) : "";
    parts.push(leaf({ title: `Arguments ${brief}`.trim(), brief, isArguments: true }, part));
  }
  return parts.length > 1 ? [inner({ title: "Arguments", isArguments: true }, parts)] : parts;
}

// Constants go where they are first read, results where they are made.
function place(tree) {
  const { graph, leafOf } = tree;
  const last = tree.all.filter((group) => !group.children.length).pop();
  const put = (node, group) => {
    group.nodes.push(node);
    leafOf.set(node, group);
  };
  for (const node of graph.nodes) {
    if (leafOf.has(node)) continue;
    if (node.kind === "result") {
      const maker = graph.values[node.operands[0]]?.node;
      const home = maker && leafOf.get(maker);
      put(node, home && !home.isArguments ? home : last);
    } else {
      const user = graph.values[node.outputs[0]]?.users.find((user) => leafOf.has(user.node));
      if (user) node.isRight = isOnRight(user.node);
      put(node, (user && leafOf.get(user.node)) || last);
    }
  }
  for (const group of tree.all) group.nodes.sort((a, b) => a.index - b.index);
}

const isOnRight = (node) => node.isRight || node.isBackward;

// What is below each group, and what goes from group to group at each level.
function finish(tree) {
  for (const group of [...tree.all].reverse()) {
    const below = group.children.length ? group.children : null;
    const count = (of) =>
      below ? sum(below, (child) => child[of]) : sum(group.nodes, (n) => counts[of](n));
    const counts = {
      forward: (node) => Number(node.kind === "node" && !node.isBackward),
      derived: (node) => Number(node.kind === "node" && node.isBackward),
      values: (node) => Number(node.kind === "argument"),
      linked: (node) => Number(node.kind === "node" && counterparts(node).length > 0),
    };
    for (const of of Object.keys(counts)) group[of] = count(of);
    group.families = below
      ? mergedCounts(below.flatMap((child) => child.families))
      : mergedCounts(group.nodes.map((node) => [node.family, 1]));
    group.isBackward = !group.forward && group.derived > 0;
    group.common = commonCode(group.children);
  }
  tree.flows = flowsOf(tree);
}

// The code that all of the groups have, as what was called in one line has that line.
function commonCode(groups) {
  const [first, ...others] = groups.map((group) => group.common || group.code);
  return others.every((code) => code === first) ? first || "" : "";
}

function mergedCounts(pairs) {
  const counts = new Map();
  for (const [family, count] of pairs) counts.set(family, (counts.get(family) || 0) + count);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// Per group, or null for the graph: `{from, to, values, isFromRight, isToRight}` between children.
function flowsOf({ graph, leafOf }) {
  const levels = new Map();
  for (const node of graph.nodes) {
    for (const value of node.operands) {
      if (value < 0) continue;
      const maker = graph.values[value].node;
      const [from, to] = partedWays(leafOf.get(maker), leafOf.get(node));
      if (!from || maker.isConstant || isShared(graph.values[value])) continue;
      if (!levels.has(from.parent)) levels.set(from.parent, new Map());
      const level = levels.get(from.parent);
      const [isFromRight, isToRight] = [isOnRight(maker), isOnRight(node)];
      const key = `${from.at} ${to.at} ${isFromRight} ${isToRight}`;
      if (!level.has(key)) level.set(key, { from, to, values: new Set(), isFromRight, isToRight });
      level.get(key).values.add(value);
    }
  }
  return levels;
}

// The children of the innermost group that holds both.
function partedWays(a, b) {
  const [up, other] = [withAncestors(a), withAncestors(b)];
  const at = up.findIndex((group, i) => group !== other[i]);
  return at < 0 || !other[at] ? [null, null] : [up[at], other[at]];
}

function withAncestors(group) {
  const way = [];
  for (; group; group = group.parent) way.unshift(group);
  return way;
}

// Name scopes.

function scopeGroups(nodes, prefix) {
  const own = [];
  const bySegment = new Map();
  for (const node of nodes) {
    const rest = node.scope.slice(prefix.length);
    if (!rest) {
      own.push(node);
      continue;
    }
    const segment = rest.split("/")[0];
    if (!bySegment.has(segment)) bySegment.set(segment, []);
    bySegment.get(segment).push(node);
  }
  const first = (nodes) => nodes.reduce((least, node) => Math.min(least, node.index), Infinity);
  const groups = lineGroups(own).map((group) => ({ group, first: first(nodesIn(group)) }));
  for (const [segment, inside] of bySegment)
    groups.push({ group: scopeGroup(`${prefix}${segment}`, inside), first: first(inside) });
  return chunked(groups.sort((a, b) => a.first - b.first).map(({ group }) => group));
}

// A scope of one line is a leaf, and one that holds nothing but a scope goes without a box.
function scopeGroup(scope, nodes) {
  const children = scopeGroups(nodes, `${scope}/`);
  const [only] = children;
  const names = { title: shownScope(scope), brief: scope.split("/").pop(), scope };
  if (children.length > 1)
    return inner({ ...names, code: codeOf(children), isList: true }, children);
  if (only.scope) return { ...only, title: only.scope };
  const code = [only.title, only.code].filter(Boolean).join("  ");
  return { ...only, ...names, code };
}

// The last segment, and the one above it where the last is but a number.
function shownScope(scope) {
  const segments = scope.split("/");
  return segments.slice(/^\d+$/.test(segments[segments.length - 1]) ? -2 : -1).join("/");
}

const codeOf = (groups) => {
  const titles = groups.map((group) => group.title);
  return titles.length > 3
    ? `${titles[0]} \u2026 ${titles[titles.length - 1]}`
    : titles.join(" \u00b7 ");
};

function nodesIn(group) {
  return group.children.length ? group.children.flatMap(nodesIn) : group.nodes;
}

// Lines.

// A unit is a run of forward nodes of one line, and what was derived of them.
function unitsOf(nodes) {
  const units = [];
  const unitOf = new Map();
  /** @type {any} */
  let last = null;
  const start = (node) => {
    last = { key: lineKey(node.place), place: node.place, nodes: [] };
    units.push(last);
  };
  for (const node of nodes.filter((n) => !n.isBackward)) {
    if (!last || last.key !== lineKey(node.place)) start(node);
    last.nodes.push(node);
    unitOf.set(node, last);
  }
  last = null;
  for (const node of nodes.filter((n) => n.isBackward)) {
    const home = node.primals.map((primal) => unitOf.get(primal)).find(Boolean);
    if (home) {
      home.nodes.push(node);
      last = null;
      continue;
    }
    if (!last || last.key !== lineKey(node.place)) start(node);
    last.nodes.push(node);
  }
  units.sort((a, b) => a.nodes[0].index - b.nodes[0].index);
  return units;
}

function lineGroups(nodes) {
  const units = unitsOf(nodes);
  const groups = [];
  for (const { from, period, count } of repeats(units.map((unit) => unit.key))) {
    if (count === 1) {
      groups.push(...units.slice(from, from + period).map(unitGroup));
      continue;
    }
    const rounds = [];
    for (let n = 0; n < count; n++)
      rounds.push(units.slice(from + n * period, from + (n + 1) * period));
    groups.push(roundsGroup(rounds));
  }
  return chunked(groups);
}

function unitGroup(unit) {
  const title = lineTitle([unit.place]);
  if (Math.max(...halves(unit.nodes).map((half) => half.length)) <= GROUP.leaf)
    return leaf(title, unit.nodes);
  const pieces = pieceGroups(unit.nodes, title);
  return pieces.length === 1 ? leaf(title, unit.nodes) : inner(title, chunked(pieces));
}

const halves = (nodes) => [
  nodes.filter((node) => !node.isBackward),
  nodes.filter((node) => node.isBackward),
];

function roundsGroup(rounds) {
  const title = lineTitle(rounds[0].map((unit) => unit.place));
  const made = bundledRounds(rounds).map(({ units, first, last, total }) => {
    const name = {
      ...title,
      title: roundTitle(title.title, first, last, total),
      brief: roundRange(first, last),
      base: title.title,
      kind: "rounds",
    };
    const nodes = units.flatMap((unit) => unit.nodes);
    if (nodes.filter((node) => !node.isBackward).length <= GROUP.round) return leaf(name, nodes);
    return inner(name, units.map(unitGroup));
  });
  if (made.length === 1) return { ...made[0], ...title };
  return inner({ ...title, title: `${title.title}  \u00d7 ${rounds.length}` }, chunked(made));
}

// Rounds of a few nodes share a box.
function bundledRounds(rounds) {
  const parts = [];
  const total = rounds.length;
  rounds.forEach((units, at) => {
    const last = parts[parts.length - 1];
    const size = sum(units, (unit) => unit.nodes.length);
    if (last && last.size + size <= GROUP.least * 2 && last.size < GROUP.least) {
      last.units.push(...units);
      last.size += size;
      last.last = at + 1;
    } else parts.push({ units: [...units], size, first: at + 1, last: at + 1, total });
  });
  return parts;
}

const roundRange = (first, last) => (first === last ? `${first}` : `${first}\u2013${last}`);
const roundTitle = (title, first, last, total) =>
  `${roundRange(first, last)} of ${total}  ${title}`.trim();

// The base name of the file, the line or lines, and the text of the lines.
function lineTitle(places) {
  const [place] = places;
  const lines = places.filter((other) => other.number === place.number).map((other) => other.line);
  const [first, last] = [Math.min(...lines), Math.max(...lines)];
  const title =
    first < last ? `${place.file}:${first}\u2013${last}` : placeText(place) || "no known line";
  const code = [...new Set(places.map((other) => other.code).filter(Boolean))].join("  \u00b7  ");
  const brief = title.replace(/^.*:/, ":");
  return { title, brief, code, place };
}

// A long run of one line, or of anything: what it computes for each of several values by itself,
// as an optimizer does for each variable; or rounds of equal ops; or else ranges of nodes.
function pieceGroups(nodes, title) {
  const [forward, derived] = title ? halves(nodes) : [nodes, []];
  const base = forward.length ? forward : derived;
  const parts = (title && separateParts(base)) || repeatedParts(base);
  if (base === forward) deal(derived, parts);
  return parts.map(({ nodes, name }) => leaf(pieceTitle(nodes, name, title), nodes));
}

/** @returns {{nodes: any[], name?: any}[]} */
function repeatedParts(base) {
  return stretchesOf(base).flatMap(({ rounds, plain }) =>
    plain ? ranges(plain).map((nodes) => ({ nodes })) : namedParts(rounds),
  );
}

// Stretches of nodes, in which rounds of the same ops are repeated or nothing is.
function stretchesOf(nodes) {
  const names = nodes.map((node) => `${node.op} ${node.place.instruction} ${node.isBackward}`);
  return repeats(names, 2 * GROUP.least).map(({ from, period, count }) => {
    if (count === 1) return { plain: nodes.slice(from, from + period) };
    const round = (n) => nodes.slice(from + n * period, from + (n + 1) * period);
    return { rounds: Array.from({ length: count }, (_, n) => [{ nodes: round(n) }]) };
  });
}

// A long flow: what repeats is a group of its rounds, and the rest is cut into ranges.
function stretchGroups(nodes) {
  const leafOf = (/** @type {{nodes: any[], name?: any}} */ { nodes, name }) =>
    leaf(pieceTitle(nodes, name, null), nodes);
  return stretchesOf(nodes).flatMap(({ rounds, plain }) => {
    if (plain) return ranges(plain).map((nodes) => leafOf({ nodes }));
    const leaves = namedParts(rounds).map(leafOf);
    const title = lineTitle(rounds[0][0].nodes.map((node) => node.place));
    if (leaves.length === 1) return [{ ...leaves[0], ...title }];
    return [inner({ ...title, title: `${title.title}  \u00d7 ${rounds.length}` }, chunked(leaves))];
  });
}

const namedParts = (rounds) =>
  bundledRounds(rounds).flatMap(({ units, first, last, total }) =>
    ranges(units.flatMap((unit) => unit.nodes)).map((nodes) => ({
      nodes,
      name: [first, last, total],
    })),
  );

// Parts that share nothing but scalars; null where there are not several of them.
/** @returns {{nodes: any[], name?: any}[] | null} */
function separateParts(nodes) {
  const numbers = new Map(nodes.map((node, number) => [node, number]));
  const edges = directEdges(nodes[0].graph, nodes, numbers, isShared);
  const parts = components(
    nodes.map((node) => ({ node })),
    edges,
  )
    .map((part) => part.boxes.map((box) => box.node))
    .sort((a, b) => a[0].index - b[0].index);
  const makers = parts.filter((part) => part.some(makesResult));
  const isLarge = (part) =>
    part.length >= GROUP.part && (makers.length < GROUP.rounds || makers.includes(part));
  const large = parts.filter(isLarge);
  const rest = parts.filter((part) => !isLarge(part)).flat();
  if (large.length < GROUP.rounds) return null;
  const named = namedParts(large.map((nodes) => [{ nodes }]));
  return rest.length ? [...ranges(rest).map((nodes) => ({ nodes })), ...named] : named;
}

// A scalar, or what is spread of one, that many nodes read: it joins nothing.
function isShared({ node, type, users }) {
  const spread = node.op === "broadcast_to" && node.graph.values[node.operands[0]];
  if (spread && spread.type.text.endsWith("[]")) return users.length > 1;
  return users.length > 2 && type.text.endsWith("[]");
}

// What stands in a group of one line leaves that line to the group.
function pieceTitle(nodes, name, title) {
  const own = nodes.filter((node) => !node.isBackward);
  const named = own.length ? own : nodes;
  const places = [...new Map(nodes.map((node) => [lineKey(node.place), node.place])).values()];
  const line = title || lineTitle(places);
  const base = title ? "" : line.title;
  const [first, last] = [named[0].name, named[named.length - 1].name];
  const range = first === last ? first : `${first}\u2013${last}`;
  const said = [name ? namedBy(nodes) : "", base].filter(Boolean).join("  ");
  const text = name ? roundTitle(said, ...name) : `${range}  ${base}`.trim();
  const brief = name ? roundRange(name[0], name[1]) : range;
  return { ...line, title: text, base, brief, kind: name ? "rounds" : "range" };
}

const makesResult = (node) =>
  node.outputs.some((value) =>
    node.graph.values[value].users.some((u) => u.node.kind === "result"),
  );

// The shortest name of what the nodes are for, as a variable is named before its momentum.
function namedBy(nodes) {
  const names = nodes.flatMap(resultsOf).sort((a, b) => a.length - b.length);
  if (!names.length) return "";
  const name = names[0].replace(/^new /, "");
  const end = name.length > LONG_NAME ? `\u2026${name.slice(1 - LONG_NAME)}` : name;
  return names.length > 1 ? `${end} +${names.length - 1}` : end;
}

// The names of the results that a node makes, as far as they have any.
function resultsOf(node) {
  const users = node.outputs.flatMap((value) => node.graph.values[value].users);
  const names = users.filter((user) => user.node.kind === "result").map((user) => user.node.name);
  return names.filter((name) => !/^result( \d+)?$/.test(name));
}

function ranges(nodes) {
  const count = Math.ceil(nodes.length / GROUP.leaf);
  const size = Math.ceil(nodes.length / count);
  return Array.from({ length: count }, (_, n) => nodes.slice(n * size, (n + 1) * size));
}

// Derived nodes go to the piece of which they read a value, or where the one before them went.
function deal(derived, parts) {
  const home = new Map();
  parts.forEach((part) => part.nodes.forEach((node) => home.set(node, part)));
  let last = parts[parts.length - 1];
  for (const node of derived) {
    const read = node.operands.map((value) => node.graph.values[value]?.node);
    last = read.map((maker) => home.get(maker)).find(Boolean) || last;
    last.nodes.push(node);
  }
}

// Long lists of groups get a level above them, of ranges. Rounds stand apart from what is none.
function chunked(groups) {
  if (groups.length <= GROUP.most) return groups;
  const stretches = [];
  for (const group of groups) {
    const last = stretches[stretches.length - 1];
    if (last && kindOf(last[0]) === kindOf(group)) last.push(group);
    else stretches.push([group]);
  }
  const isMixed = stretches.length > 1 && stretches.some((part) => part.length > GROUP.most);
  if (isMixed) return chunked(stretches.flatMap(chunked));
  const count = Math.min(12, Math.ceil(Math.sqrt(groups.length)));
  const size = Math.ceil(groups.length / count);
  const chunks = [];
  for (let at = 0; at < groups.length; at += size) {
    const part = groups.slice(at, at + size);
    chunks.push(part.length === 1 ? part[0] : inner({ ...rangeTitle(part), isRange: true }, part));
  }
  return chunked(chunks);
}

const kindOf = (group) => group.kind || "";

function rangeTitle(groups) {
  const [first, last] = [groups[0], groups[groups.length - 1]];
  const code = first.code === last.code ? first.code : "";
  const { base, place, kind } = first;
  const isCounted = groups.every(
    (group) => group.kind && group.base === base && group.kind === kind,
  );
  const between = (start, end) => `${start} \u2026 ${end}`;
  if (!isCounted) {
    const brief = between(first.brief || first.title, last.brief || last.title);
    const title = kind ? brief : between(first.title, last.title);
    return { title, brief, code, place };
  }
  const brief = `${first.brief.split("\u2013")[0]}\u2013${last.brief.split("\u2013").pop()}`;
  return { title: `${brief}  ${base}`.trim(), brief, base, code, place, kind };
}

// Stretches of a sequence: `count` rounds of `period` items each, `least` items in all or more, or
// one round of what does not repeat.
function repeats(keys, least = GROUP.rounds) {
  const found = [];
  let plain = null;
  for (let from = 0; from < keys.length;) {
    const best = bestRepeat(keys, from);
    if (best && best.period * best.count >= least) {
      found.push({ from, ...best });
      from += best.period * best.count;
      plain = null;
    } else {
      if (!plain) found.push((plain = { from, period: 0, count: 1 }));
      plain.period++;
      from++;
    }
  }
  return found;
}

function bestRepeat(keys, from) {
  let best = null;
  const longest = Math.min(GROUP.period, Math.floor((keys.length - from) / GROUP.rounds));
  for (let period = 1; period <= longest; period++) {
    if (keys[from] !== keys[from + period]) continue;
    let same = 0;
    while (from + period + same < keys.length && keys[from + same] === keys[from + period + same])
      same++;
    const count = Math.floor(same / period) + 1;
    if (count < GROUP.rounds) continue;
    if (!best || count * period > best.count * best.period) best = { period, count };
  }
  return best;
}
