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
