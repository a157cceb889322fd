// Pointer and keyboard, and the buttons.

const pointers = new Map();
let press = null;

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.clientX, event.clientY]);
  press = { x: event.clientX, y: event.clientY, isMoved: false };
});
canvas.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return hover(event);
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
  const now = [event.clientX, event.clientY];
  if (others.length) {
    const area = canvas.getBoundingClientRect();
    const distance = (/** @type {number[]} */ [a, b], /** @type {number[]} */ [c, d]) =>
      Math.hypot(a - c, b - d) || 1;
    zoomBy(
      distance(now, others[0]) / distance(before, others[0]),
      others[0][0] - area.left,
      others[0][1] - area.top,
    );
  }
  if (press && Math.hypot(now[0] - press.x, now[1] - press.y) > 4) press.isMoved = true;
  if (press?.isMoved) {
    camera.x += now[0] - before[0];
    camera.y += now[1] - before[1];
    canvas.classList.add("moving");
    draw();
  }
  pointers.set(event.pointerId, now);
});
const release = (event) => {
  pointers.delete(event.pointerId);
  canvas.classList.remove("moving");
  if (press && !press.isMoved && event.type === "pointerup") click(event);
  if (!pointers.size) press = null;
};
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);

function click(event) {
  const box = boxAt(event.clientX, event.clientY);
  if (!box) return clearSelection();
  const area = canvas.getBoundingClientRect();
  const y = (event.clientY - area.top - camera.y) / camera.zoom;
  if (box.kind === "card") {
    const head = Math.max(CARD.header, 19 / camera.zoom);
    return y - box.y < head || !box.isOpen ? toggle(box) : clearSelection();
  }
  const x = (event.clientX - area.left - camera.x) / camera.zoom;
  if (box.isOpen && y - box.y < BOX.header && x - box.x < 34) return toggle(box);
  select(box, false);
}

canvas.addEventListener("dblclick", (event) => {
  const box = boxAt(event.clientX, event.clientY);
  if (box && box.kind === "pill") reveal(box.node, box.path);
  else if (box && box.kind !== "card") toggle(box);
});
canvas.addEventListener(
  "wheel",
  (event) => {
    // In a notebook the wheel scrolls the notebook until the graph is clicked.
    if (window.parent !== window && document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    const area = canvas.getBoundingClientRect();
    const step = event.deltaMode ? event.deltaY * 16 : event.deltaY;
    zoomBy(
      Math.exp(-step * (event.ctrlKey ? 0.01 : 0.0016)),
      event.clientX - area.left,
      event.clientY - area.top,
    );
  },
  { passive: false },
);

function hover(event) {
  const box = boxAt(event.clientX, event.clientY);
  canvas.classList.toggle("over", !!box);
  const wire = (!box || box.isOpen) && wireAt(event.clientX, event.clientY);
  canvas.title = wire ? spokenWire(wire) : box ? spokenBox(box) : "";
}

const spokenBox = (box) =>
  box.kind === "card" ? [box.title, box.group.code].filter(Boolean).join("\n") : spoken(box.node);

const MOST_SPOKEN = 12;

function spokenWire({ from, to, values }) {
  const all = [...values].map((value) => from.graph.values[value]);
  const rows = all.slice(0, MOST_SPOKEN).map(({ name, type }) => `${name} ${type.text}`);
  const more = all.length > MOST_SPOKEN ? [`and ${all.length - MOST_SPOKEN} more`] : [];
  return [`${from.title} \u2192 ${to.title}`, ...rows, ...more].join("\n");
}

minimap.addEventListener("pointerdown", (event) => {
  minimap.setPointerCapture(event.pointerId);
  aimMinimap(event);
});
minimap.addEventListener("pointermove", (event) => event.buttons && aimMinimap(event));

const KEYS = {
  ArrowUp: () => walk(0, -1),
  ArrowDown: () => walk(0, 1),
  ArrowLeft: () => walk(-1, 0),
  ArrowRight: () => walk(1, 0),
  Enter: () => {
    const box = selected && scene.byId.get(selected.id);
    if (box && box.kind === "pill") reveal(box.node, box.path);
    else if (box) toggle(box);
  },
  "+": () => zoomBy(1.25),
  "=": () => zoomBy(1.25),
  "-": () => zoomBy(0.8),
  f: fit,
  0: fit,
  t: () => showText(),
  "/": () => {
    $("search").focus();
    $("search").select();
  },
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return escape();
  const action = KEYS[event.key];
  if (!action || hasOwnUse(event.target, event.key)) return;
  event.preventDefault();
  action();
});

// Keys that mean something to what has the focus: text is typed, buttons are pressed, and what
// stands in the panel or is text is scrolled.
function hasOwnUse(target, key) {
  if (target.matches("input, textarea, select")) return true;
  if (key === "Enter") return target.matches("button, summary");
  return key.startsWith("Arrow") && !!target.closest(".panel, #text");
}

function showText(isOpen = !$("text").open) {
  $("text").open = isOpen;
  (isOpen ? $("text").querySelector("pre") : canvas).focus({ preventScroll: true });
}

function escape() {
  if ($("text").open) return showText(false);
  if (document.activeElement === $("search") || $("search").value) {
    find("");
    return canvas.focus();
  }
  if (selected) return clearSelection();
  if (view.graph !== model.entry) showGraph(model.entry);
}

$("search").addEventListener("input", () => find($("search").value));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") goToResult(resultAt + (event.shiftKey ? -1 : 1));
  else if (event.key === "ArrowDown") goToResult(resultAt + 1);
  else if (event.key === "ArrowUp") goToResult(resultAt - 1);
  else return;
  event.preventDefault();
});
$("fit").onclick = fit;
$("in").onclick = () => zoomBy(1.25);
$("out").onclick = () => zoomBy(0.8);
$("flow").onclick = () => setMode("flow");
$("lines").onclick = () => setMode("lines");
$("scopes").onclick = () => setMode("scopes");
$("open").onclick = unfoldAll;
$("close").onclick = foldAll;
$("save").onclick = saveSvg;
$("show-text").onclick = () => showText();
$("hide-text").onclick = () => showText(false);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  theme = readTheme(document.documentElement);
  draw();
});
