// Drawing a scene. Two painters have the same few methods: one draws on a canvas, one writes SVG
// for files and for print. What is too small to read is not drawn as text.

const DETAIL = { far: 0.22, text: 0.5, fine: 0.62, title: 0.8 };

class CanvasPainter {
  constructor(context, theme) {
    this.context = context;
    this.theme = theme;
  }

  box(x, y, w, h, r, style) {
    const c = this.context;
    c.beginPath();
    c.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2));
    this.ink(style);
  }

  // Commands are `["M", x, y]`, `["L", x, y]`, `["C", ...]` and `["Z"]`.
  path(commands, style) {
    const c = this.context;
    c.beginPath();
    for (const [kind, ...p] of commands)
      if (kind === "M") c.moveTo(...p);
      else if (kind === "L") c.lineTo(...p);
      else if (kind === "C") c.bezierCurveTo(...p);
      else c.closePath();
    this.ink(style);
  }

  ink({ fill, stroke, width = 1, dash = null, alpha = 1, fillAlpha = 1 }) {
    const c = this.context;
    if (fill) {
      c.globalAlpha = alpha * fillAlpha;
      c.fillStyle = fill;
      c.fill();
    }
    if (stroke) {
      c.globalAlpha = alpha;
      c.strokeStyle = stroke;
      c.lineWidth = width;
      c.setLineDash(dash || []);
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  text(x, y, text, font, { fill, anchor = "start", alpha = 1, scale = 1, isUpright = false }) {
    const c = this.context;
    c.save();
    c.translate(x, y);
    if (isUpright) c.rotate(-Math.PI / 2);
    c.font = fontOf(font, this.theme, scale);
    c.textAlign = anchor === "middle" ? "center" : anchor === "end" ? "right" : "left";
    c.textBaseline = "middle";
    c.globalAlpha = alpha;
    c.fillStyle = fill;
    c.fillText(text, 0, 0.5);
    c.restore();
  }
}

class SvgPainter {
  constructor(theme) {
    this.theme = theme;
    this.parts = [];
  }

  box(x, y, w, h, r, style) {
    this.parts.push(
      `<rect x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" rx="${f(r)}"${this.ink(style)}/>`,
    );
  }

  path(commands, style) {
    const d = commands.map(([kind, ...p]) => kind + p.map(f).join(" ")).join("");
    this.parts.push(`<path d="${d}"${this.ink(style)}/>`);
  }

  ink({ fill, stroke, width = 1, dash = null, alpha = 1, fillAlpha = 1 }) {
    let text = ` fill="${fill || "none"}"`;
    if (fill && alpha * fillAlpha < 1) text += ` fill-opacity="${f(alpha * fillAlpha)}"`;
    if (stroke) text += ` stroke="${stroke}" stroke-width="${f(width)}"`;
    if (stroke && alpha < 1) text += ` stroke-opacity="${f(alpha)}"`;
    return dash && stroke ? `${text} stroke-dasharray="${dash.join(" ")}"` : text;
  }

  text(x, y, text, font, { fill, anchor = "start", alpha = 1, scale = 1, isUpright = false }) {
    const turn = isUpright ? ` transform="rotate(-90 ${f(x)} ${f(y)})"` : "";
    const family = quotedAttribute(font.mono ? this.theme.mono : this.theme.sans);
    const weight = font.weight ? ` font-weight="${font.weight}"` : "";
    const faint = alpha < 1 ? ` fill-opacity="${f(alpha)}"` : "";
    this.parts.push(
      `<text x="${f(x)}" y="${f(y + 0.5)}" dy=".35em" text-anchor="${anchor}" xml:space="preserve"` +
        ` font-family="${family}" font-size="${f(font.size * scale)}"${weight} fill="${fill}"${faint}${turn}>` +
        `${escaped(text)}</text>`,
    );
  }

  document(x, y, w, h, label) {
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${f(x)} ${f(y)} ${f(w)} ${f(h)}"` +
      ` width="${f(w)}" height="${f(h)}" role="img" aria-label="${quotedAttribute(label)}">` +
      `<rect x="${f(x)}" y="${f(y)}" width="${f(w)}" height="${f(h)}" fill="${this.theme.paper}"/>` +
      `${this.parts.join("")}</svg>`
    );
  }
}

const f = (number) => String(Math.round(number * 100) / 100);
const escaped = (text) =>
  text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
const quotedAttribute = (text) => escaped(text).replace(/"/g, "&quot;");

function fontOf(font, theme, scale = 1) {
  return `${font.weight || 400} ${font.size * scale}px ${font.mono ? theme.mono : theme.sans}`;
}

// Draws what is visible of the scene. `window` is the visible part in the scene's coordinates,
// `zoom` the scale at which it is shown, `marks` what is selected, found and related.
function paintScene(painter, scene, { window, zoom, marks }) {
  const sees = (box, margin = 0) =>
    box.x - margin < window.x + window.w &&
    box.y - margin - 20 < window.y + window.h &&
    box.x + box.w + margin > window.x &&
    box.y + box.h + margin + 20 > window.y;
  const look = { painter, theme: painter.theme, zoom, marks };
  const visible = scene.boxes.filter((box) => sees(box));
  // Edges and links lie below the boxes, so that no line strikes through a name.
  for (const box of visible) if (box.kind === "card" || box.isOpen) paintFrame(look, box);
  for (const wire of scene.wires) if (sees(wire, 40)) paintWire(look, wire);
  if (zoom >= DETAIL.fine)
    for (const wire of scene.wires) if (wire.label && sees(wire, 40)) paintLabel(look, wire);
  for (const edge of scene.edges) if (sees(edge)) paintEdge(look, edge);
  for (const box of visible) if (box.kind !== "card" && !box.isOpen) paintBox(look, box);
  if (zoom >= DETAIL.fine) for (const box of visible) paintChips(look, box);
  if (zoom < DETAIL.title) paintFarTitles(look, visible);
}

function edgePath(points) {
  const commands = [["M", ...points[0]]];
  for (let i = 1; i < points.length; i++) {
    const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
    if (i % 2 || Math.abs(x0 - x1) < 0.5) commands.push(["L", x1, y1]);
    else commands.push(["C", x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1]);
  }
  return commands;
}

function paintEdge({ painter, theme, zoom, marks }, edge) {
  const isMarked = marks.edge(edge);
  const style = isMarked
    ? { stroke: theme.accent, width: 2.2 / Math.max(zoom, 0.6) }
    : { stroke: theme.edge, width: Math.max(1.3, 0.75 / zoom), alpha: marks.isActive ? 0.8 : 1 };
  if (edge.values.length > 1) style.width *= Math.min(3.2, Math.sqrt(edge.values.length));
  painter.path(edgePath(edge.points), style);
  if (zoom < DETAIL.text) return;
  const [x, y] = edge.points[edge.points.length - 1];
  const s = edge.flip ? 1 : -1;
  const tip = [["M", x, y], ["L", x - 3.6, y + 6.5 * s], ["L", x + 3.6, y + 6.5 * s], ["Z"]];
  painter.path(tip, { fill: isMarked ? theme.accent : theme.edge });
}

// A way of straight parts with round corners; joins of neighbours are curves.
function wirePath({ points, isNext }) {
  if (isNext) {
    const [[x0, y0], [x1, y1]] = points;
    const middle = (y0 + y1) / 2;
    return Math.abs(x0 - x1) < 0.5
      ? [
          ["M", x0, y0],
          ["L", x1, y1],
        ]
      : [
          ["M", x0, y0],
          ["C", x0, middle, x1, middle, x1, y1],
        ];
  }
  const commands = [["M", ...points[0]]];
  for (let i = 1; i < points.length - 1; i++) {
    const corner = points[i];
    const [before, after] = [points[i - 1], points[i + 1]].map((end) => {
      const distance = Math.hypot(end[0] - corner[0], end[1] - corner[1]);
      const share = Math.min(WIRE.corner, distance / 2) / Math.max(distance, 0.01);
      return [0, 1].map((axis) => corner[axis] + (end[axis] - corner[axis]) * share);
    });
    commands.push(["L", ...before], ["C", ...corner, ...corner, ...after]);
  }
  commands.push(["L", ...points[points.length - 1]]);
  return commands;
}

function paintWire({ painter, theme, zoom, marks }, wire) {
  const isMarked = marks.wire(wire);
  const color = isMarked ? theme.accent : wire.isToRight ? theme.backwire : theme.bundle;
  const thick = Math.min(4.5, 1.2 + 0.5 * Math.sqrt(wire.values.size));
  const width = (wire.isNext ? thick : Math.min(2, thick)) / Math.min(1, Math.max(zoom, 0.2) * 1.5);
  const alpha = isMarked ? 1 : wire.isNext ? 0.95 : 0.75;
  painter.path(wirePath(wire), { stroke: color, width, alpha });
  if (zoom < DETAIL.far) return;
  const { points } = wire;
  const [x, y] = points[points.length - 1];
  const [px, py] = points[points.length - 2];
  const [dx, dy] = wire.isNext ? [0, Math.sign(y - py)] : [Math.sign(x - px), 0];
  const size = 4.5 / Math.max(zoom, 0.6);
  const tip = [
    ["M", x + dx, y + dy],
    ["L", x - (dx * 1.7 + dy) * size, y - (dy * 1.7 + dx) * size],
    ["L", x - (dx * 1.7 - dy) * size, y - (dy * 1.7 - dx) * size],
    ["Z"],
  ];
  painter.path(tip, { fill: color });
}

// A label on a wire hides it where it stands; one beside a wire needs no ground.
function paintLabel({ painter, theme }, { label, ground }) {
  const { x, y, w, h, isUpright, isGrounded, text } = label;
  const [width, height] = isUpright ? [h, w] : [w, h];
  const fill = theme[ground];
  if (isGrounded) painter.box(x - width / 2, y - height / 2, width, height, 3, { fill });
  painter.text(x, y, text, FONT.small, { fill: theme.muted, anchor: "middle", isUpright });
}

function paintChip({ painter, theme }, x, y, text, w, fill) {
  painter.box(x - w / 2, y - 8, w, 16, 8, { fill });
  painter.text(x, y, text, FONT.small, { fill: theme.muted, anchor: "middle" });
}

function paintChips({ painter, theme }, box) {
  if (box.kind === "card" || !box.chips.length) return;
  const y = box.flip ? box.y - 10 : box.y + box.h + 10;
  for (const chip of box.chips)
    paintChip(
      { painter, theme },
      box.x + box.w / 2 + chip.x,
      y,
      chip.text,
      chip.w,
      theme[box.ground],
    );
}

// Cards, and the frames of calls that are open.
function paintFrame(look, box) {
  const { painter, theme, zoom, marks } = look;
  const isCard = box.kind === "card";
  const { x, y, w, h } = box;
  const isBackward = isCard ? box.isBackward : box.node.isBackward;
  const border = isCard ? theme.border : theme.family.call;
  paintMarks(look, box, 12);
  painter.box(x, y, w, h, 12, { fill: isBackward ? theme.backward : theme.surface });
  const dash = isBackward && zoom > 0.2 ? [6, 4] : null;
  painter.box(x, y, w, h, 12, {
    stroke: isBackward ? theme.backwire : border,
    width: Math.max(isCard ? 1.2 : 1.6, 0.9 / zoom),
    dash,
  });
  if (box.derivedGround) paintDerivedGround(look, box);
  if (zoom < 0.3) return;
  if (isCard) paintCardHead(look, box);
  else {
    const name = box.frames.length ? "" : `@${box.node.calls[0].graph.name}`;
    paintToggle(look, x + 20, y + 18, true);
    painter.text(x + 36, y + 18, box.text, FONT.op, { fill: theme.ink });
    const from = x + 46 + marks.measure(box.text, FONT.op);
    painter.text(from, y + 18, clipped(name, 60), FONT.code, { fill: theme.family.call });
    painter.text(x + w - 14, y + 18, box.node.name, FONT.name, {
      fill: theme.muted,
      anchor: "end",
    });
    for (const frame of box.frames) paintPart(look, box, frame);
  }
}

// The frame of one of several graphs that a node holds, and what it is there.
function paintPart({ painter, theme, zoom }, box, { x, y, w, h, label }) {
  const [left, top] = [box.x + x, box.y + y];
  painter.box(left, top, w, h, 9, { stroke: theme.border, width: Math.max(1, 0.8 / zoom) });
  if (zoom >= DETAIL.text)
    painter.text(left + 14, top + 17, label, FONT.code, { fill: theme.family.call });
}

// The half of a card that was derived of the other half.
function paintDerivedGround({ painter, theme, zoom }, card) {
  const { x, y, w, h } = card.derivedGround;
  painter.box(card.x + x, card.y + y, w, h, 9, { fill: theme.backward });
  painter.box(card.x + x, card.y + y, w, h, 9, {
    stroke: theme.backwire,
    width: Math.max(1, 0.8 / zoom),
    dash: zoom > 0.2 ? [6, 4] : null,
    alpha: 0.8,
  });
}

function paintCardHead({ painter, theme, zoom, marks }, card) {
  const { x, y, w } = card;
  paintToggle({ painter, theme }, x + 18, y + 20, card.isOpen);
  const right = x + w - 14;
  if (zoom >= DETAIL.text)
    painter.text(right, y + 20, card.note, FONT.name, { fill: theme.muted, anchor: "end" });
  if (zoom >= DETAIL.title) {
    const title = fittedTitle(marks.measure, card, w - 58 - marks.measure(card.note, FONT.name));
    painter.text(x + 32, y + 20, title, FONT.title, { fill: theme.ink });
  }
  if (card.code && zoom >= DETAIL.fine) {
    const code = fitted(marks.measure, card.code, FONT.code, w - 2 * CARD.pad + 8);
    painter.text(x + 14, y + 40, code, FONT.code, { fill: theme.muted });
  }
  if (!card.isOpen) paintFamilies({ painter, theme }, card, x + 14, y + card.h - 10, w - 28, 4);
}

// The title, or where it does not fit what tells the card from those beside it. Of names the
// beginning says something, of numbers it says what is wrong.
function fittedTitle(measure, { title, brief }, room) {
  const whole = [title, brief].find((text) => measure(text, FONT.title) <= room);
  if (whole) return whole;
  const cut = fitted(measure, brief, FONT.title, room);
  return /\d/.test(brief.slice(Math.max(0, cut.length - 1))) ? "" : cut;
}

// The text, cut to what fits in so much room; nothing where not even two letters do.
function fitted(measure, text, font, room) {
  if (measure(text, font) <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${text.slice(0, middle)}\u2026`, font) <= room) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}\u2026` : "";
}

function paintFamilies({ painter, theme }, card, x, y, w, h) {
  const total = sum(card.families, ([, count]) => count);
  let from = x;
  for (const [family, count] of card.families) {
    const size = (w * count) / total;
    painter.box(from, y, Math.max(1, size - 1.5), h, 2, { fill: theme.family[family] });
    from += size;
  }
}

function paintToggle({ painter, theme }, x, y, isOpen) {
  const arrow = isOpen
    ? [
        ["M", x - 5, y - 2.5],
        ["L", x, y + 3],
        ["L", x + 5, y - 2.5],
      ]
    : [
        ["M", x - 2.5, y - 5],
        ["L", x + 3, y],
        ["L", x - 2.5, y + 5],
      ];
  painter.path(arrow, { stroke: theme.muted, width: 1.8 });
}

// From afar the titles of cards keep the size that they have on the screen. A title that would meet
// that of a card around it is left out.
function paintFarTitles(look, boxes) {
  const taken = [];
  for (const card of boxes) {
    const strip = card.kind === "card" && farTitle(look, card);
    if (!strip || taken.some((other) => isOver(other, strip))) continue;
    taken.push(strip);
    paintFarTitle(look, card, strip);
  }
}

const isOver = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

// Where a title stands and what it says; null for cards that are too small to have one.
function farTitle({ zoom, marks }, card) {
  if (card.w * zoom < 16 || card.h * zoom < 13) return null;
  const isTiny = zoom < 0.3; // then the title covers what is below it
  const note = zoom < DETAIL.text ? 0 : marks.measure(card.note, FONT.name) + 12;
  const room = card.w - (isTiny ? 8 / zoom : 46 + note);
  const sizes = [12, 9.5].map((size) => size / FONT.title.size / zoom);
  const texts = sizes.map((scale) => fittedTitle(marks.measure, card, room / scale));
  const at = texts.findIndex((text) => text && !text.endsWith("\u2026"));
  const [text, scale] = at < 0 ? [texts[1], sizes[1]] : [texts[at], sizes[at]];
  if (!text) return null;
  const h = isTiny ? Math.min(19 / zoom, card.h) : CARD.header;
  const w = Math.min(card.w, marks.measure(text, FONT.title) * scale + 10 / zoom);
  return { x: card.x, y: card.y, w: isTiny ? w : card.w, h, text, scale, isTiny };
}

function paintFarTitle({ painter, theme, zoom }, card, { x, y, w, h, text, scale, isTiny }) {
  const style = { fill: theme.ink, scale };
  if (!isTiny) return painter.text(x + 32, y + 20, text, FONT.title, style);
  const fill = card.isBackward ? theme.backward : theme.surface;
  painter.box(x, y, w, h, 5 / zoom, { fill, fillAlpha: 0.94 });
  painter.text(x + 5 / zoom, y + h / 2, text, FONT.title, style);
}

function paintMarks({ painter, theme, zoom, marks }, box, radius) {
  const ring = (color, width, out, alpha = 1) =>
    painter.box(box.x - out, box.y - out, box.w + 2 * out, box.h + 2 * out, radius + out, {
      stroke: color,
      width,
      alpha,
    });
  const thin = 1 / Math.max(zoom, 0.35);
  if (marks.isRelated(box)) {
    painter.box(box.x - 5, box.y - 5, box.w + 10, box.h + 10, radius + 5, {
      fill: theme.related,
      fillAlpha: 0.28,
    });
    ring(theme.related, 1.6 * thin, 4);
  }
  if (marks.isFound(box)) ring(theme.found, 2.4 * thin, 3);
  if (marks.isSelected(box)) ring(theme.accent, 2.6 * thin, 3);
  else if (marks.isSame(box)) ring(theme.accent, 1.6 * thin, 3, 0.7);
}

// A frame around what took long in a profile, as strong as it took long.
function paintHeat({ painter, theme, zoom }, { x, y, w, h, node, kind }) {
  const { heat } = node.place;
  if (kind !== "node" || heat < 0.02) return;
  const gap = 4 / Math.min(1, Math.max(zoom, 0.3));
  painter.box(x - gap, y - gap, w + 2 * gap, h + 2 * gap, 9, {
    fill: theme.heat,
    fillAlpha: 0.15 + 0.85 * heat,
  });
}

function paintBox(look, box) {
  const { theme, zoom } = look;
  const color = theme.family[box.node.family];
  paintHeat(look, box);
  paintMarks(look, box, box.kind === "node" ? 7 : 12);
  if (zoom < DETAIL.text) return paintFarBox(look, box, color);
  if (box.kind === "node") paintNode(look, box, color);
  else paintPill(look, box, color);
}

// From afar a box is a block of its colour, with the name of the op where that fits.
function paintFarBox({ painter, theme, zoom, marks }, box, color) {
  if (box.kind === "pill" || box.kind === "constant") {
    if (zoom > 0.12) painter.box(box.x, box.y, box.w, box.h, 12, { fill: color, fillAlpha: 0.22 });
    return;
  }
  const isBackward = box.node.isBackward;
  painter.box(box.x, box.y, box.w, box.h, 6, {
    fill: color,
    fillAlpha: box.kind !== "node" ? 0.3 : isBackward ? theme.far : 0.92,
    stroke: isBackward ? color : null,
    width: Math.max(1.5, 1 / zoom),
  });
  if (zoom < DETAIL.far) return;
  const scale = 0.72 / zoom;
  const text = fitted(marks.measure, box.text, FONT.op, (box.w - 4 / zoom) / scale);
  const fill = isBackward || box.kind !== "node" ? theme.ink : theme.surface;
  painter.text(box.x + box.w / 2, box.y + box.h / 2, text, FONT.op, {
    fill,
    anchor: "middle",
    scale,
  });
}

function paintNode({ painter, theme, zoom }, box, color) {
  const { x, y, w, h, node } = box;
  const isBackward = node.isBackward;
  painter.box(x, y, w, h, 7, { fill: theme.surface });
  painter.box(x, y, w, h, 7, {
    fill: color,
    fillAlpha: isBackward ? theme.tint * 0.5 : theme.tint,
    stroke: color,
    width: 1.2,
    dash: isBackward ? [4, 3] : null,
  });
  // Forward nodes carry their colour on the left, backward nodes on the right.
  painter.box(isBackward ? x + w - 5 : x + 1, y + 5, 4, h - 10, 2, { fill: color });
  const middle = box.detail ? y + 15 : y + h / 2;
  let from = x + BOX.pad;
  if (box.mark) {
    painter.text(from, middle, box.mark, FONT.op, { fill: theme.role });
    from += 14;
  }
  painter.text(from, middle, box.text, FONT.op, { fill: theme.ink });
  painter.text(x + w - BOX.pad, middle, node.name, FONT.name, { fill: theme.muted, anchor: "end" });
  if (box.detail && zoom >= 0.5) {
    const fill = node.calls.length ? theme.family.call : theme.muted;
    painter.text(x + BOX.pad, y + 33, box.detail, FONT.small, { fill });
  }
}

function paintPill({ painter, theme, zoom }, box, color) {
  const { x, y, w, h, kind } = box;
  const isCopy = kind === "pill";
  painter.box(x, y, w, h, 12, { fill: theme.surface });
  painter.box(x, y, w, h, 12, {
    fill: color,
    fillAlpha: isCopy && !box.node.isConstant ? 0.04 : theme.tint,
    stroke: color,
    width: 1,
    dash: isCopy && !box.node.isConstant ? [2, 3] : null,
  });
  if (kind === "result") painter.box(x, y, w, h, 12, { stroke: theme.ink, width: 1.6 });
  const middle = y + h / 2;
  if (!box.type)
    return painter.text(x + w / 2, middle, box.text, FONT.name, {
      fill: theme.ink,
      anchor: "middle",
    });
  painter.text(x + BOX.pad, middle, box.text, FONT.name, { fill: theme.ink });
  if (zoom >= 0.5)
    painter.text(x + w - BOX.pad, middle, box.type, FONT.small, {
      fill: theme.muted,
      anchor: "end",
    });
}
