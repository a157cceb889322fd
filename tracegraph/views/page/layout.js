// Layered layout. A plane is a list of boxes and of edges between them; edges go down. Every step
// is linear in boxes and edges but for a few sorts, so thousands of boxes take a moment.

const SINKS = 4; // trees of sources that are no taller than this stand beside what they are for
const GAP = { x: 22, y: 30, bend: 34, thread: 14 };

// Lays out boxes `{w, h, below, layer?}` and edges `{from, to, fromX, toX, value}`, whose ends are
// numbers of boxes and offsets from the middle of a box. Sets x and y of the boxes and `points` of
// the edges; returns the size. Unconnected parts stand side by side in rows, `gap` apart.
function layOut(boxes, edges, aspect, gap) {
  const parts = components(boxes, edges);
  for (const part of parts) Object.assign(part, layOutPart(part.boxes, part.edges));
  return packed(parts, aspect, gap);
}

function components(boxes, edges) {
  const parent = boxes.map((_, number) => number);
  const root = (number) => {
    while (parent[number] !== number) number = parent[number] = parent[parent[number]];
    return number;
  };
  for (const edge of edges) parent[root(edge.from)] = root(edge.to);
  const parts = new Map();
  const numbers = [];
  boxes.forEach((box, number) => {
    const key = root(number);
    if (!parts.has(key)) parts.set(key, { boxes: [], edges: [] });
    numbers.push(parts.get(key).boxes.push(box) - 1);
  });
  for (const edge of edges) {
    const part = parts.get(root(edge.from));
    part.edges.push({ ...edge, edge, from: numbers[edge.from], to: numbers[edge.to] });
  }
  return [...parts.values()];
}

function packed(parts, aspect, gap) {
  const area = sum(parts, (part) => (part.w + gap) * (part.h + gap));
  const widest = parts.reduce((most, part) => Math.max(most, part.w), Math.sqrt(area * aspect));
  let [x, y, shelf, w] = [0, 0, 0, 0];
  for (const part of parts) {
    if (x && x + part.w > widest + 1) [x, y, shelf] = [0, y + shelf + gap, 0];
    for (const box of part.boxes) [box.x, box.y] = [box.x + x, box.y + y];
    for (const edge of part.edges) {
      edge.edge.points = edge.points.map(([a, b]) => [a + x, b + y]);
    }
    w = Math.max(w, x + part.w);
    shelf = Math.max(shelf, part.h);
    x += part.w + gap;
  }
  return { w, h: y + shelf };
}

function layOutPart(boxes, edges) {
  if (boxes.length === 1) {
    Object.assign(boxes[0], { x: 0, y: 0 });
    return { w: boxes[0].w, h: boxes[0].h + boxes[0].below };
  }
  const layers = layersOf(boxes, edges);
  const cells = boxes.map((box, number) => makeCell(layers[number], box.w, box));
  const { segments, threads } = threaded(cells, edges, layers);
  const rows = orderedRows(cells);
  placeAcross(rows);
  for (let round = 0; round < 2; round++) for (const thread of threads) straighten(thread, rows);
  return placeDown(rows, segments, boxes, edges, cells);
}

// The longest way from the top; then what may sink sinks towards what it is nearer to.
function layersOf(boxes, edges) {
  const layers = boxes.map(() => 0);
  const [into, out] = [boxes.map(() => []), boxes.map(() => [])];
  for (const edge of edges) {
    into[edge.to].push(edge.from);
    out[edge.from].push(edge.to);
  }
  const order = topological(into, out);
  const height = []; // how much stands above that is made of sources alone; Infinity if other things do
  for (const n of order) {
    for (const from of into[n]) layers[n] = Math.max(layers[n], layers[from] + 1);
    const tallest = into[n].reduce((most, from) => Math.max(most, height[from]), 0);
    height[n] = tallest < SINKS ? tallest + 1 : Infinity;
  }
  for (let i = order.length - 1; i >= 0; i--) {
    const n = order[i];
    if (!out[n].length || !(height[n] <= SINKS || into[n].length < out[n].length)) continue;
    layers[n] = out[n].reduce((lowest, to) => Math.min(lowest, layers[to] - 1), Infinity);
  }
  const used = [...new Set(layers)].sort((a, b) => a - b);
  const rank = new Map(used.map((layer, number) => [layer, number]));
  return layers.map((layer) => rank.get(layer));
}

function topological(into, out) {
  const left = into.map((list) => list.length);
  const order = [];
  left.forEach((count, n) => count || order.push(n));
  for (let i = 0; i < order.length; i++)
    for (const to of out[order[i]]) if (!--left[to]) order.push(to);
  return order;
}

function makeCell(layer, w, box) {
  return { layer, w, box, x: 0, place: 0, up: [], down: [] };
}

// Edges that pass layers are led through empty cells, one thread for each value.
function threaded(cells, edges, layers) {
  const threads = new Map();
  const segments = [];
  const join = (top, topX, bottom, bottomX) => {
    const weight = top.box ? (bottom.box ? 1 : 2) : bottom.box ? 2 : 16;
    const segment = { top, topX, bottom, bottomX, weight };
    top.down.push(segment);
    bottom.up.push(segment);
    segments.push(segment);
  };
  for (const edge of [...edges].sort((a, b) => layers[a.to] - layers[b.to])) {
    const key = `${edge.from} ${edge.value}`;
    if (!threads.has(key)) threads.set(key, [cells[edge.from]]);
    const thread = threads.get(key);
    const span = layers[edge.to] - layers[edge.from];
    while (thread.length < span) {
      const cell = makeCell(layers[edge.from] + thread.length, GAP.thread, null);
      const last = thread[thread.length - 1];
      join(last, last.box ? edge.fromX : 0, cell, 0);
      thread.push(cell);
      cells.push(cell);
    }
    const last = thread[span - 1];
    join(last, last.box ? edge.fromX : 0, cells[edge.to], edge.toX);
    edge.way = thread.slice(1, span);
  }
  for (const segment of segments) segment.weight *= importance(segment.top);
  return { segments, threads: [...threads.values()].map((thread) => thread.slice(1)) };
}

// Chains of what is computed stand upright; sources make way for them.
function importance(cell) {
  if (!cell.box) return 1;
  if (!cell.up.length) return 0.05;
  return cell.up.every((segment) => segment.top.box && !segment.top.up.length) ? 0.1 : 1;
}

// Sweeps down and up that put every cell at the middle of its neighbours; the best order stays.
function orderedRows(cells) {
  const rows = [];
  for (const cell of depthFirst(cells)) (rows[cell.layer] ||= []).push(cell);
  number(rows);
  let best = { crossings: crossings(rows), rows: rows.map((row) => [...row]) };
  for (let sweep = 0; sweep < 8 && best.crossings; sweep++) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) sortRow(row, isDown);
    const count = crossings(rows);
    if (count < best.crossings) best = { crossings: count, rows: rows.map((row) => [...row]) };
  }
  number(best.rows);
  inRank(best.rows, best.crossings);
  return best.rows;
}

// Boxes of a row that have a rank, which are arguments, stand in that order, unless it costs very
// many crossings.
function inRank(rows, least) {
  const isWorth = (count) => crossings(rows) <= least + 4 * count;
  for (const row of rows) {
    const before = [...row];
    const ranked = row.filter((cell) => cell.box?.rank !== undefined);
    const sorted = [...ranked].sort((a, b) => a.box.rank - b.box.rank);
    const places = ranked.map((cell) => row.indexOf(cell));
    places.forEach((place, n) => (row[place] = sorted[n]));
    number([row]);
    if (sorted.every((cell, n) => cell === ranked[n]) || isWorth(ranked.length)) continue;
    row.splice(0, row.length, ...before);
    number([row]);
  }
}

// Cells in the order in which a walk upwards from the results meets them, operands from the left.
function depthFirst(cells) {
  const seen = new Set();
  const order = [];
  const ends = cells.filter((cell) => !cell.down.length);
  for (const end of ends) {
    const stack = [[end, 0]];
    seen.add(end);
    while (stack.length) {
      const top = stack[stack.length - 1];
      const segment = top[0].up[top[1]++];
      if (!segment) order.push(stack.pop()[0]);
      else if (!seen.has(segment.top)) {
        seen.add(segment.top);
        stack.push([segment.top, 0]);
      }
    }
  }
  return order;
}

function number(rows) {
  for (const row of rows) row.forEach((cell, place) => (cell.place = place));
}

function sortRow(row, isDown) {
  for (const cell of row) {
    const segments = isDown ? cell.up : cell.down;
    let total = 0;
    for (const s of segments) {
      const [other, offset] = isDown ? [s.top, s.topX] : [s.bottom, s.bottomX];
      total +=
        other.place +
        offset / (other.w + 1) -
        0.01 * ((isDown ? s.bottomX : s.topX) / (cell.w + 1));
    }
    cell.middle = segments.length ? total / segments.length : cell.place;
  }
  row.sort((a, b) => a.middle - b.middle || a.place - b.place);
  row.forEach((cell, place) => (cell.place = place));
}

function crossings(rows) {
  let count = 0;
  for (let layer = 1; layer < rows.length; layer++) {
    const ends = [];
    for (const cell of rows[layer - 1])
      for (const s of [...cell.down].sort(
        (a, b) => a.bottom.place - b.bottom.place || a.bottomX - b.bottomX,
      ))
        ends.push(s.bottom.place);
    const size = rows[layer].length + 1;
    const tree = new Int32Array(size + 1);
    for (let i = ends.length - 1; i >= 0; i--) {
      for (let at = ends[i]; at > 0; at -= at & -at) count += tree[at];
      for (let at = ends[i] + 1; at <= size; at += at & -at) tree[at]++;
    }
  }
  return count;
}

// Each row goes as near as it can to its neighbours without overlaps or a change of order.
function placeAcross(rows) {
  for (const row of rows) {
    let x = 0;
    for (const cell of row) {
      cell.x = x + cell.w / 2;
      x += cell.w + gapAfter(cell);
    }
    for (const cell of row) cell.x -= x / 2;
  }
  const rounds = 20;
  for (let round = 0; round < rounds; round++) {
    const isDown = round % 2 === 0;
    const useBoth = round >= rounds - 6;
    for (const row of isDown ? rows : [...rows].reverse()) {
      for (const cell of row) wish(cell, useBoth || isDown, useBoth || !isDown);
      placeRow(row, gapAfter);
    }
  }
}

function gapAfter(cell) {
  return cell.box ? GAP.x : 6;
}

function wish(cell, up, down) {
  let [total, weight] = [0, 0];
  const lean = (segment, x) => {
    total += x * segment.weight;
    weight += segment.weight;
  };
  // Small boxes stand middle below middle, so that chains do not drift; large ones by their ports.
  const far = (x) => (Math.abs(x) > 60 ? x : 0);
  if (up) for (const s of cell.up) lean(s, s.top.x + far(s.topX) - far(s.bottomX));
  if (down) for (const s of cell.down) lean(s, s.bottom.x + far(s.bottomX) - far(s.topX));
  cell.wish = weight ? total / weight : cell.x;
  cell.weight = weight || 0.05;
}

// The least squares solution under the order: neighbours that would overlap move as one.
function placeRow(row, gapAfter) {
  const blocks = [];
  let offset = 0;
  row.forEach((cell, i) => {
    if (i) offset += row[i - 1].w / 2 + gapAfter(row[i - 1]) + cell.w / 2;
    cell.offset = offset;
    let block = { from: i, weight: cell.weight, at: cell.wish - offset };
    while (blocks.length && blocks[blocks.length - 1].at > block.at) {
      const last = blocks.pop();
      const weight = last.weight + block.weight;
      block = {
        from: last.from,
        weight,
        at: (last.at * last.weight + block.at * block.weight) / weight,
      };
    }
    blocks.push(block);
  });
  blocks.forEach((block, b) => {
    const end = b + 1 < blocks.length ? blocks[b + 1].from : row.length;
    for (let i = block.from; i < end; i++) row[i].x = block.at + row[i].offset;
  });
}

// The sweeps leave threads slanted; where there is room, long parts of them are made upright.
function straighten(thread, rows) {
  const room = thread.map((cell) => {
    const row = rows[cell.layer];
    const [left, right] = [row[cell.place - 1], row[cell.place + 1]];
    return [
      left ? left.x + left.w / 2 + gapAfter(left) + cell.w / 2 : -Infinity,
      right ? right.x - right.w / 2 - gapAfter(cell) - cell.w / 2 : Infinity,
    ];
  });
  for (let start = 0; start < thread.length;) {
    let [low, high] = room[start];
    let end = start + 1;
    while (end < thread.length && Math.max(low, room[end][0]) <= Math.min(high, room[end][1])) {
      low = Math.max(low, room[end][0]);
      high = Math.min(high, room[end][1]);
      end++;
    }
    const below = thread[end - 1].down[0];
    const above = thread[start].up[0];
    const wish =
      end === thread.length
        ? below.bottom.x + below.bottomX
        : start
          ? thread[start - 1].x
          : above.top.x + above.topX;
    const x = Math.max(low, Math.min(high, wish));
    for (; start < end; start++) thread[start].x = x;
  }
}

function placeDown(rows, segments, boxes, edges, cells) {
  const bends = rows.map(() => 0);
  for (const s of segments) {
    const bend = Math.abs(s.top.x + s.topX - s.bottom.x - s.bottomX);
    bends[s.top.layer] = Math.max(bends[s.top.layer], bend);
  }
  const tops = [];
  const bottoms = [];
  let y = 0;
  rows.forEach((row, layer) => {
    tops.push(y);
    y += row.reduce((most, cell) => Math.max(most, cell.box ? cell.box.h + cell.box.below : 0), 0);
    bottoms.push(y);
    y += GAP.y + Math.min(GAP.bend, bends[layer] / 9);
  });
  const left = cells.reduce((least, cell) => Math.min(least, cell.x - cell.w / 2), Infinity);
  const right = cells.reduce((most, cell) => Math.max(most, cell.x + cell.w / 2), -Infinity);
  for (const cell of cells) cell.x -= left;
  boxes.forEach((box, n) =>
    Object.assign(box, { x: cells[n].x - box.w / 2, y: tops[cells[n].layer] }),
  );
  for (const edge of edges) {
    const [from, to] = [cells[edge.from], cells[edge.to]];
    const points = [[from.x + edge.fromX, from.box.y + from.box.h]];
    points.push([from.x + edge.fromX, bottoms[from.layer]]);
    for (const cell of edge.way)
      points.push([cell.x, tops[cell.layer]], [cell.x, bottoms[cell.layer]]);
    points.push([to.x + edge.toX, tops[to.layer]]);
    edge.points = points;
  }
  return { w: right - left, h: bottoms[bottoms.length - 1] };
}
