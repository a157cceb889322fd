// The nodes as a tree of elements: functions, their groups, and nodes. It is what readers of the
// screen, keyboards and the browser's own search find. Branches are filled when they open, and in
// idle moments, so that thousands of nodes cost nothing at first.

const TREE = { open: 160, idle: 6000, chunk: 12 };
const branches = new Map(); // per item of the tree: {fill, children}
const itemOf = new Map(); // per node its item, once it is there

function growTree() {
  const root = element("ul", { role: "tree", "aria-labelledby": "tree-title" });
  const graphs = [...model.graphs].reverse();
  for (const graph of graphs) root.append(functionItem(graph));
  $("tree").replaceChildren(root);
  const [first] = root.children;
  first.tabIndex = 0;
  unfoldItem(first);
  if (model.total <= TREE.open) {
    for (const item of root.children) unfoldAllItems(item);
  } else fillWhenIdle([...root.querySelectorAll("[aria-expanded]")]);
  root.addEventListener("click", clickTree);
  root.addEventListener("keydown", walkTree);
}

function treeItem(level, row, fill) {
  const item = element("li", { role: "treeitem", tabIndex: -1, "aria-level": String(level) });
  row.style.setProperty("--level", String(level - 1));
  item.append(row);
  if (fill) {
    item.setAttribute("aria-expanded", "false");
    const children = element("ul", { role: "group" });
    // What is folded is still found by the browser's search, which unfolds it.
    children.setAttribute("hidden", "until-found");
    children.addEventListener("beforematch", () => unfoldItem(item));
    item.append(children);
    branches.set(item, { fill, children, isFilled: false });
  }
  return item;
}

function functionItem(graph) {
  const row = element(
    "div",
    { className: "row" },
    element("span", { className: "fold" }),
    element("span", { className: "label function" }, `@${graph.name}`),
    element("small", {}, counted(graph.count, "node")),
  );
  const item = treeItem(1, row, () => {
    const { tops } = groupsOf(graph, model.hasScopes ? "scopes" : "lines");
    return tops.map((group) => groupItem(group, 2));
  });
  item.dataset.graph = graph.name;
  return item;
}

function groupItem(group, level) {
  const row = element(
    "div",
    { className: "row", title: group.code },
    element("span", { className: "fold" }),
    element("span", { className: "label" }, [group.title, group.code].filter(Boolean).join("  ")),
    element("small", {}, noteOf(group)),
  );
  const item = treeItem(level, row, () =>
    group.children.length
      ? group.children.map((child) => groupItem(child, level + 1))
      : group.nodes.map((node) => nodeItem(node, level + 1)),
  );
  if (group.scope) item.dataset.scope = group.scope;
  return item;
}

function nodeItem(node, level) {
  const types = node.outputs.map((value) => node.graph.values[value].type.text);
  const type = types.length > 2 ? counted(types.length, "value") : types.join(", ");
  const row = element(
    "div",
    { className: "row" },
    element("i", { className: `dot ${node.family}${node.isBackward ? " back" : ""}` }),
    element("code", {}, node.name),
    element("span", { className: "label" }, node.kind === "node" ? node.op : node.kind),
    element("small", {}, type),
  );
  const item = treeItem(level, row, null);
  Object.assign(item.dataset, { node: node.name, graph: node.graph.name, op: node.op });
  item.setAttribute("aria-label", spoken(node));
  item.setAttribute("aria-selected", "false");
  item.node = node;
  itemOf.set(node, item);
  return item;
}

function fillItem(item) {
  const branch = branches.get(item);
  if (!branch || branch.isFilled) return [];
  branch.isFilled = true;
  const made = branch.fill();
  branch.children.append(...made);
  return made.filter((child) => branches.has(child));
}

function unfoldItem(item) {
  fillItem(item);
  item.setAttribute("aria-expanded", "true");
  branches.get(item).children.removeAttribute("hidden");
}

function foldItem(item) {
  item.setAttribute("aria-expanded", "false");
  branches.get(item).children.setAttribute("hidden", "until-found");
}

function unfoldAllItems(item) {
  if (!branches.has(item)) return;
  unfoldItem(item);
  for (const child of branches.get(item).children.children) unfoldAllItems(child);
}

function fillWhenIdle(queue) {
  if (model.total > TREE.idle) return;
  const later = window.requestIdleCallback || ((run) => setTimeout(run, 30));
  const step = () => {
    for (let n = 0; n < TREE.chunk && queue.length; n++) {
      const item = queue.shift();
      const children = branches.get(item).isFilled ? [] : fillItem(item);
      queue.push(...children);
    }
    if (queue.length) later(step);
  };
  later(step);
}

// The item of a node, with all that it is in unfolded.
function itemFor(node) {
  const root = $("tree").querySelector(`:scope > ul`);
  if (!root) return null;
  let item = root.children[[...model.graphs].reverse().indexOf(node.graph)];
  unfoldItem(item);
  const tree = groupsOf(node.graph, model.hasScopes ? "scopes" : "lines");
  for (const group of withAncestors(tree.leafOf.get(node))) {
    item = branches.get(item).children.children[group.at];
    unfoldItem(item);
  }
  return itemOf.get(node);
}

function pickInTree(node) {
  const before = $("tree").querySelector('[aria-selected="true"]');
  if (before) before.setAttribute("aria-selected", "false");
  const item = node && itemFor(node);
  if (!item) return;
  item.setAttribute("aria-selected", "true");
  focusItem(item, false);
  scrollTree(item);
}

// Scrolls the tree alone: in narrow windows it has no height of its own, and the details stay.
function scrollTree(item) {
  const [outer, row] = [$("tree"), item.firstElementChild].map((at) => at.getBoundingClientRect());
  if (row.top < outer.top) $("tree").scrollTop += row.top - outer.top;
  else if (row.bottom > outer.bottom) $("tree").scrollTop += row.bottom - outer.bottom;
}

function focusItem(item, isFocused = true) {
  const before = $("tree").querySelector('[tabindex="0"]');
  if (before) before.tabIndex = -1;
  item.tabIndex = 0;
  if (isFocused) item.focus();
}

function clickTree(event) {
  const item = event.target.closest('[role="treeitem"]');
  if (!item) return;
  focusItem(item);
  if (item.node) reveal(item.node);
  else toggleItem(item);
}

function toggleItem(item) {
  if (item.getAttribute("aria-expanded") === "true") foldItem(item);
  else unfoldItem(item);
}

const visibleItems = () =>
  [...$("tree").querySelectorAll('[role="treeitem"]')].filter(
    (item) => !item.parentElement.closest("[hidden]"),
  );

function walkTree(event) {
  const item = event.target.closest('[role="treeitem"]');
  if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
  const isOpen = item.getAttribute("aria-expanded") === "true";
  const go = (other) => other && focusItem(other);
  const parent = item.parentElement.closest('[role="treeitem"]');
  const step = (way) => {
    const items = visibleItems();
    go(items[items.indexOf(item) + way]);
  };
  const actions = {
    ArrowDown: () => step(1),
    ArrowUp: () => step(-1),
    ArrowRight: () => {
      if (!branches.has(item)) return;
      if (isOpen) go(branches.get(item).children.firstElementChild);
      else unfoldItem(item);
    },
    ArrowLeft: () => (isOpen ? foldItem(item) : go(parent)),
    Home: () => go(visibleItems()[0]),
    End: () => go(visibleItems().pop()),
    Enter: () => (item.node ? reveal(item.node) : toggleItem(item)),
    " ": () => (item.node ? reveal(item.node) : toggleItem(item)),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  actions[event.key]();
}
