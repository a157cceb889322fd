// The side panel: what is known of the selected node, or else of the graph.

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
  $("panel").scrollTop = 0;
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
    place.seconds ? element("p", { className: "seconds" }, durationText(place.seconds)) : null,
  );
}

function durationText(seconds) {
  const [size, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${(seconds / size).toPrecision(3)} ${unit} in the profile, for all of this line`;
}

function callSection(node) {
  const isOpen = selected && view.opened.has(selected.id);
  const rows = node.calls.map((call, number) => {
    const open = element("button", { type: "button" }, isOpen ? "close" : "open here");
    open.onclick = () => toggle(scene.byId.get(selected.id));
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
      number ? null : open, // it opens all that the node holds
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
    [graph.count, "node"],
    [graph.backward, "backward", "backward"],
    [graph.arguments, "argument"],
    [graph.results, "result"],
  ].filter(([count]) => count);
  const table = element(
    "dl",
    { className: "counts" },
    ...counts.map(([count, ...words]) =>
      element(
        "div",
        {},
        element("dd", {}, count.toLocaleString("en")),
        element("dt", {}, wordFor(count, ...words)),
      ),
    ),
  );
  const isOne = model.graphs.length === 1;
  const whole = isOne ? table : section(`In @${graph.name} itself`, table);
  $("details").replaceChildren(whole, legend());
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
  if (scene.boxes.some((box) => box.kind === "pill" && !box.node.isConstant)) {
    rows.push(
      element(
        "li",
        { className: "wide" },
        element("i", { className: "dot pill" }),
        "dotted pill: a value from further away",
      ),
    );
  }
  return section("Legend", element("ul", { className: "legend" }, ...rows));
}
