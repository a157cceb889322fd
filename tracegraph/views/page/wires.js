// Wires between cards. Neighbours in a column are joined straight; all other wires run through the
// gutters between the columns, and above or below all of them, so that none lies under a card. What
// comes from one card shares a lane.

const WIRE = { lane: 8, most: 9, gutter: 40, port: 20, out: 36, corner: 9 };

// Sets x of the cards, and returns the wires and the size of it all.
function wired(flows, cards, columns, graph, measure) {
  const cardOfGroup = new Map(cards.map((card) => [card.group, card]));
  const wires = flows.map((flow) => routed(flow, cardOfGroup));
  const lanes = {
    gutters: columns.map(() => new Map()).concat([new Map()]),
    above: new Map(),
    below: new Map(),
  };
  for (const wire of wires) takeLanes(wire, lanes);
  const top = heightOfLanes(lanes.above);
  const across = placeColumns(columns, lanes.gutters, top);
  const bottom = columns.reduce((most, column) => Math.max(most, column.h), 0) + top;
  for (const wire of wires) {
    wire.points = wire.isNext ? straightPoints(wire) : lanePoints(wire, across, top, bottom);
    label(wire, graph, measure);
  }
  keepApart(wires);
  return { wires, w: across.w, h: bottom + heightOfLanes(lanes.below) };
}

function routed(flow, cardOfGroup) {
  const [from, to] = [cardOfGroup.get(flow.from), cardOfGroup.get(flow.to)];
  const wire = { ...flow, from, to, isDerived: flow.isToRight && flow.isFromRight };
  const isSame = from.column === to.column;
  wire.isNext = isSame && Math.abs(from.place - to.place) === 1;
  const isRightwards = isSame ? wire.isDerived : from.column < to.column;
  wire.outSide = isRightwards ? 1 : 0;
  wire.inSide = isSame ? wire.outSide : 1 - wire.outSide;
  wire.outGutter = from.column + wire.outSide;
  wire.inGutter = to.column + wire.inSide;
  wire.bus = wire.outGutter === wire.inGutter ? null : from.column < to.column ? "above" : "below";
  wire.source = `${from.id} ${flow.isFromRight}`;
  return wire;
}

function takeLanes(wire, lanes) {
  if (wire.isNext) return;
  const take = (table) => {
    if (!table.has(wire.source)) table.set(wire.source, table.size % WIRE.most);
    return table.get(wire.source);
  };
  wire.outLane = take(lanes.gutters[wire.outGutter]);
  wire.inLane = take(lanes.gutters[wire.inGutter]);
  if (wire.bus) wire.busLane = take(lanes[wire.bus]);
}

const lanesOf = (table) => Math.min(table.size, WIRE.most);
const heightOfLanes = (table) => (table.size ? 14 + WIRE.lane * lanesOf(table) : 0);

function placeColumns(columns, gutters, top) {
  const starts = [];
  let x = 0;
  gutters.forEach((table, number) => {
    const isOuter = number === 0 || number === columns.length;
    const count = lanesOf(table);
    const wide = isOuter ? (count ? 22 + WIRE.lane * count : 0) : WIRE.gutter + WIRE.lane * count;
    starts.push(x + wide / 2 - (WIRE.lane * (count - 1)) / 2);
    x += wide;
    if (number === columns.length) return;
    for (const card of columns[number].cards) {
      card.x = x + (columns[number].w - card.w) / 2;
      card.y += top;
    }
    x += columns[number].w;
  });
  return { starts, w: x };
}

// Where forward and derived stand within a card.
function middleOf(card, isRight) {
  if (card.inside?.length === 2) {
    const part = card.inside[isRight ? 1 : 0];
    return card.x + part.x + part.plane.w / 2;
  }
  const { forward, derived } = card.group;
  return card.x + card.w * (forward && derived ? (isRight ? 0.72 : 0.28) : 0.5);
}

function straightPoints(wire) {
  const { from, to } = wire;
  const isDown = to.y > from.y;
  return [
    [middleOf(from, wire.isFromRight), isDown ? from.y + from.h : from.y],
    [middleOf(to, wire.isToRight), isDown ? to.y : to.y + to.h],
  ];
}

function lanePoints(wire, { starts }, top, bottom) {
  const { from, to } = wire;
  const outY = from.y + WIRE.out + (wire.isFromRight ? 7 : 0);
  const inY = to.y + WIRE.port - (wire.isToRight ? 7 : 0);
  const outX = starts[wire.outGutter] + WIRE.lane * wire.outLane;
  const inX = starts[wire.inGutter] + WIRE.lane * wire.inLane;
  const points = [[from.x + (wire.outSide ? from.w : 0), outY]];
  points.push([outX, outY]);
  if (wire.bus) {
    const away = 10 + WIRE.lane * wire.busLane;
    const y = wire.bus === "above" ? top - away : bottom + away;
    points.push([outX, y], [inX, y]);
  }
  points.push([inX, inY], [to.x + (wire.inSide ? to.w : 0), inY]);
  return points;
}

function label(wire, graph, measure) {
  const [only] = wire.values;
  const text = wire.values.size === 1 ? graph.values[only].type.text : `${wire.values.size} values`;
  wire.text = wire.isNext ? clipped(text, 24) : "";
  wire.textWidth = measure(wire.text, FONT.small) + 12;
  const room = wire.isNext ? 0.42 * Math.min(wire.from.w, wire.to.w) : 0;
  if (wire.textWidth > room) wire.text = "";
}

// Of two labels that would meet, the later is left out.
function keepApart(wires) {
  const kept = [];
  for (const wire of wires.filter((wire) => wire.text)) {
    const [[x0, y0], [x1, y1]] = wire.points;
    const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
    const meets = (other) =>
      Math.abs(other.y - y) < 16 && Math.abs(other.x - x) < (other.w + wire.textWidth) / 2 + 4;
    if (kept.some(meets)) wire.text = "";
    else kept.push({ x, y, w: wire.textWidth });
  }
}
