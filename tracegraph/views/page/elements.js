// Elements of the page, and what they show in words. Text is never read as markup.

/** @type {(id: string) => any} */
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

// A new element with properties and children.
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
    "paper surface ink muted border edge bundle backwire accent related found heat backward role sans mono";
  const family = Object.fromEntries(Object.keys(FAMILIES).map((name) => [name, read(name)]));
  const colors = Object.fromEntries(names.split(" ").map((name) => [name, read(name)]));
  return { ...colors, family, tint: Number(read("tint")), far: Number(read("far")) };
}

function spoken(node) {
  const types = node.outputs.map((value) => node.graph.values[value].type.text).join(", ");
  return [node.name, node.op, types, placeText(node.place), node.isBackward ? "backward" : ""]
    .filter(Boolean)
    .join(", ");
}
