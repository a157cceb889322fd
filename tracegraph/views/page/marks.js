// What the painter asks about the boxes.
const marks = {
  isActive: false,
  measure: view.measure,
  isSelected: (box) => selected !== null && box.id === selected.id,
  // What stands for the same value elsewhere, and whence the operands come from further away.
  isSame: (box) =>
    selected !== null &&
    box.kind !== "card" &&
    (box.node === selected.node || sources.has(box.node)),
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
};

const unmarked = { isActive: false, measure: view.measure };
for (const name of ["isSelected", "isSame", "isRelated", "isFound", "edge", "wire"])
  unmarked[name] = () => false;
