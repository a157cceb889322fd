// What is shown: the graphs, how they are looked at, and what is selected and found.

const model = readModel(JSON.parse($("data").textContent));
const view = {
  graph: model.entry,
  mode: "flow",
  opened: new Set(),
  unfolded: new Set(),
  columns: new Map(), // how many cards stand in each column, by the level at which they stand
  aspect: 1.5,
  room: { w: 900, h: 600 },
  measure: null,
};
const camera = { x: 0, y: 0, zoom: 1 };

/** @type {any} */
let theme = readTheme(document.documentElement);
let scene = null;
let selected = null; // {node, id}
let related = new Set();
let sources = new Set(); // what made the operands of the selected node
let found = new Set();
let results = [];
let resultAt = -1;

const measuring = document.createElement("canvas").getContext("2d");
const widths = new Map();
view.measure = (text, font) => {
  const key = `${font.size} ${font.mono ? 1 : 0} ${font.weight || 0} ${text}`;
  if (!widths.has(key)) {
    measuring.font = fontOf(font, theme);
    widths.set(key, measuring.measureText(text).width);
  }
  return widths.get(key);
};
