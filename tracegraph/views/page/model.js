// The graphs as the page reads them. Arguments and results are nodes too, so that everything that
// can be drawn, found and selected is one kind of thing.

function readModel(data) {
  const graphs = data.graphs.map((graph) => ({
    name: graph.name,
    nodes: [],
    values: [],
    callers: [],
  }));
  const tables = readTables(data);
  graphs.forEach((graph, number) => readGraph(tables, graphs, graph, data.graphs[number]));
  for (const graph of graphs)
    for (const node of graph.nodes) for (const call of node.calls) call.graph.callers.push(node);
  const entry = graphs[graphs.length - 1];
  markDerived(graphs, entry);
  linkDerived(graphs);
  const hasScopes = graphs.some((graph) => graph.nodes.some((n) => n.kind === "node" && n.scope));
  return { graphs, entry, hasScopes, total: sum(graphs, (g) => g.count) };
}

// Places, types and ops stand in tables that all graphs share; `-1` is not a value.
function readTables(data) {
  const places = data.places.map(([file, line, roles, code, number, instruction]) => ({
    file,
    line,
    roles,
    code,
    number,
    instruction,
  }));
  readSeconds(places, data.seconds || []);
  const types = data.types.map(([text, dtype]) => ({ text, dtype }));
  return { places, types, ops: data.ops };
}

// How long each place took in a profile, and its part of the longest: `heat`, from 0 to 1.
function readSeconds(places, seconds) {
  const most = Math.max(0, ...seconds);
  places.forEach((place, number) => {
    place.seconds = seconds[number] || 0;
    place.heat = most ? place.seconds / most : 0;
  });
}

const NOWHERE = { file: "", line: 0, roles: [], code: "", number: -1, instruction: -1, seconds: 0, heat: 0 };

function readGraph(tables, graphs, graph, raw) {
  readArguments(tables, graph, raw);
  readNodes(tables, graphs, graph, raw);
  readResults(graph, raw);
  for (const node of graph.nodes)
    node.operands.forEach((value, operand) => {
      if (value >= 0) graph.values[value].users.push({ node, operand });
    });
  graph.count = raw.nodes.length;
  graph.arguments = raw.inputs.length;
  graph.results = raw.outputs.length;
  graph.backward = graph.nodes.filter((n) => n.kind === "node" && n.isBackward).length;
}

function addNode(graph, fields) {
  const node = {
    graph,
    index: graph.nodes.length,
    attributes: [],
    operands: [],
    outputs: [],
    calls: [],
    scope: "",
    place: NOWHERE,
    isBackward: false,
    primals: [],
    derived: [],
    ...fields,
  };
  graph.nodes.push(node);
  return node;
}

function addValue(node, name, type, given = "") {
  const { values } = node.graph;
  node.outputs.push(values.length);
  values.push({ index: values.length, name, type, node, users: [], given });
}

function readArguments({ types }, graph, raw) {
  for (const [name, type, given, scope] of raw.inputs) {
    const node = addNode(graph, { kind: "argument", op: "argument", family: "data", name, scope });
    addValue(node, name, types[type], given);
  }
}

function readNodes({ types, places, ops }, graphs, graph, raw) {
  raw.nodes.forEach((row, number) => {
    const [op, at, operands, outputs, calls = [], scope = "", given = "", origin = 0] = row;
    const [name, family, attributes] = ops[op];
    const place = places[at];
    const isBackward = place.roles.includes("vjp");
    const fields = { kind: "node", op: name, family, attributes, operands, scope, origin };
    const node = addNode(graph, { ...fields, place, isBackward });
    node.calls = calls.map(([attribute, inner]) => ({ attribute, graph: graphs[inner] }));
    for (const type of outputs)
      addValue(node, `%${graph.values.length - raw.inputs.length}`, types[type], given);
    node.name = outputs.length ? graph.values[node.outputs[0]].name : `%${number}()`;
    node.isConstant = !operands.length && family === "data" && outputs.length === 1;
  });
}

function readResults(graph, raw) {
  raw.outputs.forEach((value, number) => {
    const name = resultName(graph, raw, value, number);
    const { place, isBackward } = graph.values[value]?.node || {
      place: NOWHERE,
      isBackward: false,
    };
    const fields = { kind: "result", op: "return", family: "data", name, operands: [value] };
    addNode(graph, { ...fields, place, isBackward });
  });
}

// What a result is called: the variable that it becomes, what the user called it, or its number.
function resultName(graph, raw, value, number) {
  const given = (raw.resultNames || [])[number] || (value < 0 ? "" : graph.values[value].given);
  if (given) return given;
  return raw.outputs.length > 1 ? `result ${number}` : "result";
}

const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);

// The node's line in the words of the text form.
function placeText(place) {
  return place.file ? `${place.file}:${place.line}` : "";
}

function lineKey(place) {
  return place.file ? `${place.number}:${place.line}` : "";
}

// The value of a constant, without its type.
function constantText(node) {
  const found = node.attributes.find(([name]) => name === "value");
  if (!found) return node.op === "dim_size" ? attributeText(node, "size") : node.op;
  return found[1].replace(/^\w+ /, "");
}

function attributeText(node, wanted) {
  const found = node.attributes.find(([name]) => name === wanted);
  return found ? found[1] : "";
}

// The nodes of a graph that stand on the same line of the user's.
function sameLine(node) {
  const key = lineKey(node.place);
  if (!key) return [];
  return node.graph.nodes.filter(
    (other) => other.kind === "node" && other !== node && lineKey(other.place) === key,
  );
}

// How a search finds a node: every word must occur in what it is called and where it is from. The
// code of its line counts where nothing else is found, since a line makes many nodes.
function searchText(node) {
  if (node.searchText) return node.searchText;
  const values = node.outputs.map((value) => node.graph.values[value]);
  const { place } = node;
  node.searchText = [
    node.op,
    node.family,
    node.name,
    node.scope,
    ...values.flatMap((value) => [value.name, value.given, value.type.text, value.type.dtype]),
    ...node.attributes.map(([name, text]) => `${name}=${text}`),
    ...node.calls.map((call) => `@${call.graph.name}`),
    placeText(place),
    `line ${place.line}`,
    ...place.roles,
    node.isBackward ? "backward" : "",
  ]
    .join("\n")
    .toLowerCase();
  return node.searchText;
}

// Forward comes before derived, the entry before what it calls.
function search(model, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const order = [...model.graphs].sort((a, b) => a.isDerived - b.isDerived || a.depth - b.depth);
  const nodes = order.flatMap((graph) => graph.nodes);
  const all = nodes.filter((node) => node.kind !== "result");
  let found = all.filter((node) => words.every((word) => matches(node, word)));
  const inCode = (node) => words.every((word) => node.place.code.toLowerCase().includes(word));
  if (!found.length) found = all.filter(inCode);
  const exact = (node) => words.includes(node.name.toLowerCase()) || words.includes(node.op);
  const late = (node) => (node.isBackward || node.graph.isDerived ? 2 : 0) + (exact(node) ? 0 : 1);
  return found
    .map((node) => [late(node), node])
    .sort((a, b) => a[0] - b[0])
    .map(([, node]) => node);
}

// `%12` and `:12` mean that name and that line, not those that merely begin so.
function matches(node, word) {
  const text = searchText(node);
  if (!/^(%|.*:)\d+$/.test(word)) return text.includes(word);
  const at = text.indexOf(word);
  return at >= 0 && text.split("\n").some((part) => part === word || part.endsWith(word));
}
