// Wires between cards. Neighbours in a column are joined straight; all other wires run through the
// gutters between the columns, and above or below all of them, so that none lies under a card. What
// comes from one card shares a lane. Labels say of what types the values are that go along.

const WIRE = { lane: 14, most: 8, gutter: 34, in: [20, 7], out: [33, 44], corner: 9, aside: 10 };
// Labels: their height, how far they stand from a tip and beyond a card, and most types in words.
const LABEL = { h: 13, tip: 12, over: 20, types: 3 };

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
  const rooms = lanes.gutters.map((_, number) => labelRoom(wires, number, graph, measure));
  const top = heightOfLanes(lanes.above);
  const across = placeColumns(columns, lanes.gutters, rooms, top);
  const bottom = columns.reduce((most, column) => Math.max(most, column.h), 0) + top;
  for (const wire of wires) {
    wire.points = wire.isNext ? straightPoints(wire) : lanePoints(wire, across, top, bottom);
  }
  labelWires(wires, graph, measure);
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

// What a gutter needs more for labels of wires that have no upright part to carry them.
function labelRoom(wires, number, graph, measure) {
  const inside = wires.filter((wire) => !wire.isNext && !wire.bus && wire.outGutter === number);
  return inside.reduce((most, wire) => {
    const words = wordsOf(wire, graph).at(wire.values.size > 1 ? -1 : 0);
    const w = measure(words, FONT.small) + 8;
    const [outY, inY] = portsOf(wire);
    const isCarried = Math.abs(outY - inY) >= w + LABEL.tip;
    return isCarried ? most : Math.max(most, w + LABEL.tip);
  }, 0);
}

function placeColumns(columns, gutters, rooms, top) {
  const starts = [];
  let x = 0;
  gutters.forEach((table, number) => {
    const isOuter = number === 0 || number === columns.length;
    const count = lanesOf(table);
    const wide = isOuter ? (count ? 22 + WIRE.lane * count : 0) : WIRE.gutter + WIRE.lane * count;
    starts.push(x + wide / 2 - (WIRE.lane * (count - 1)) / 2);
    x += wide + (isOuter ? 0 : rooms[number]);
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
  return card.x + card.w * (forward && derived ? (isRight ? 0.62 : 0.38) : 0.5);
}

function straightPoints(wire) {
  const { from, to } = wire;
  const isDown = to.y > from.y;
  // What a derived half reads of a forward one ends beside what comes out of it.
  const aside = wire.isToRight && !wire.isFromRight && to.group.forward ? WIRE.aside : 0;
  return [
    [middleOf(from, wire.isFromRight), isDown ? from.y + from.h : from.y],
    [middleOf(to, wire.isToRight) + aside, isDown ? to.y : to.y + to.h],
  ];
}

// Where a wire leaves and arrives beside a card: rows that leave room for a label each.
function portsOf({ from, to, isFromRight, isToRight }) {
  return [from.y + WIRE.out[Number(isFromRight)], to.y + WIRE.in[Number(isToRight)]];
}

function lanePoints(wire, { starts }, top, bottom) {
  const { from, to } = wire;
  const [outY, inY] = portsOf(wire);
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

// What goes along a wire, in words: the first of them that have room are shown.
function wordsOf({ values }, graph) {
  const types = mergedCounts([...values].map((value) => [graph.values[value].type.text, 1]));
  const each = types.map(([type, count]) => (count > 1 ? `${count} \u00d7 ${type}` : type));
  const number = counted(values.size, "value");
  if (values.size === 1) return [...each, clipped(each[0], 12)];
  return each.length > LABEL.types ? [number] : [each.join(", "), number];
}

// Sets the `label` of each wire, so that no two of them meet and none stands on another wire if
// there is a place where it does not.
function labelWires(wires, graph, measure) {
  const taken = [];
  for (const wire of [...wires].sort((a, b) => b.isNext - a.isNext)) {
    const options = wordsOf(wire, graph).flatMap((text) => {
      const w = measure(text, FONT.small) + 8;
      const places = wire.isNext ? placesAtEnds(wire, w) : placesOnWay(wire, w);
      return places.map((place) => ({ ...place, text, w, h: LABEL.h }));
    });
    const apart = options.filter((label) => !taken.some((other) => meet(label, other)));
    const free = apart.find((label) => !wires.some((other) => isOn(label, other)));
    const [chosen = null] = [free, ...apart].filter(Boolean);
    wire.label = chosen && { ...chosen, isGrounded: !wire.isNext || chosen !== free };
    if (chosen) taken.push(chosen);
  }
}

// Beside the tip of the arrow, or else beside its start: outside of two straight wires, and on the
// side that a slanted wire leaves free.
function placesAtEnds({ points: [start, tip], from, to, isToRight, isFromRight }, w) {
  const isStraight = Math.abs(tip[0] - start[0]) < 2 * LABEL.tip;
  return [
    [tip, start, to, isToRight],
    [start, tip, from, isFromRight],
  ].flatMap(([[x, y], [otherX, otherY], card, isRight]) => {
    const isBeside = isStraight ? isRight || !card.group.derived : x > otherX;
    return (isBeside ? [1, -1] : [-1, 1])
      .filter((side) => w <= (side > 0 ? card.x + card.w - x : x - card.x) + LABEL.over)
      .map((side) => ({
        x: x + side * (w / 2 + LABEL.tip / 2),
        y: y + Math.sign(otherY - y) * LABEL.tip,
        isUpright: false,
      }));
  });
}

// Whether a label at a tip would lie on a wire between neighbours, as its curve is drawn.
function isOn(label, { points, isNext }) {
  if (!isNext || label.isUpright) return false;
  const [[x0, y0], [x1, y1]] = points;
  return Array.from({ length: 17 }, (_, n) => n / 16).some((t) => {
    const share = t * t * (3 - 2 * t);
    const y = y0 + (y1 - y0) * (1.5 * t * (1 - t) + t ** 3);
    const x = x0 + (x1 - x0) * share;
    return Math.abs(x - label.x) < label.w / 2 - 2 && Math.abs(y - label.y) < label.h / 2;
  });
}

// On a straight part that is long enough: near to its end, in its middle or at its start.
function placesOnWay({ points }, w) {
  const parts = points.slice(1).map(([x1, y1], at) => {
    const [x0, y0] = points[at];
    return { x0, y0, x1, y1, isUpright: x0 === x1, length: Math.abs(x1 - x0) + Math.abs(y1 - y0) };
  });
  parts.sort((a, b) => b.length - a.length);
  return parts.flatMap(({ x0, y0, x1, y1, isUpright, length }) => {
    if (length < w + LABEL.tip) return [];
    const near = (w / 2 + WIRE.corner) / length;
    return [1 - near, 0.5, near].map((share) => ({
      x: x0 + (x1 - x0) * share,
      y: y0 + (y1 - y0) * share,
      isUpright,
    }));
  });
}

function meet(a, b) {
  const size = ({ w, h, isUpright }) => (isUpright ? [h, w] : [w, h]);
  const [[aw, ah], [bw, bh]] = [size(a), size(b)];
  return Math.abs(a.x - b.x) < (aw + bw) / 2 && Math.abs(a.y - b.y) < (ah + bh) / 2;
}
