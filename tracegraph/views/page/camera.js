// The part of the scene that is in view, and its painting.

const READABLE = 0.8; // types are set in 10.5

let frame = 0;

function rebuild(keep) {
  const before = keep && scene ? scene.byId.get(keep) : null;
  measureRoom();
  scene = buildScene(view);
  const after = before && scene.byId.get(keep);
  if (after) {
    camera.x += (before.x - after.x) * camera.zoom;
    camera.y += (before.y - after.y) * camera.zoom;
  }
  if (!selected) showOverview();
  draw();
}

function measureRoom() {
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  view.room = { w: Math.max(200, w - 2 * MARGIN), h: Math.max(150, h - 2 * MARGIN) };
  view.aspect = Math.max(0.8, Math.min(2.2, w / Math.max(1, h)));
}
const MARGIN = 28;

function draw() {
  if (!frame) frame = requestAnimationFrame(paint);
}

function paint() {
  frame = 0;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = theme.paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.setTransform(
    ratio * camera.zoom,
    0,
    0,
    ratio * camera.zoom,
    ratio * camera.x,
    ratio * camera.y,
  );
  marks.isActive = selected !== null;
  paintScene(new CanvasPainter(context, theme), scene, {
    window: visiblePart(),
    zoom: camera.zoom,
    marks,
  });
  paintMinimap();
}

function visiblePart() {
  const { x, y, zoom } = camera;
  return {
    x: -x / zoom,
    y: -y / zoom,
    w: canvas.clientWidth / zoom,
    h: canvas.clientHeight / zoom,
  };
}

function fit() {
  setCamera(zoomToFit(view.room, scene));
}

// The zoom at which all fits, or the least one, at which it is scrolled.
function fitFrom(least) {
  setCamera(Math.max(zoomToFit(view.room, scene), least));
}

function setCamera(zoom) {
  Object.assign(camera, cameraFor(Math.max(zoom, 0.02)));
  draw();
}

// The camera that shows the scene from its beginning, in the middle as far as there is room.
function cameraFor(zoom) {
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  const [left, top] = [(w - scene.w * zoom) / 2, (h - scene.h * zoom) / 2];
  return { zoom, x: left >= MARGIN ? left : leftOfStart(w, zoom), y: Math.max(MARGIN, top) };
}

// Where the scene is wider than the window, the box with which it starts is in the middle.
function leftOfStart(w, zoom) {
  const [first] = scene.boxes;
  const middle = (first.x + first.w / 2) * zoom;
  return Math.min(MARGIN, Math.max(w - MARGIN - scene.w * zoom, w / 2 - middle));
}

let looked = { ...camera };

function zoomBy(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const zoom = Math.max(0.02, Math.min(3, camera.zoom * factor));
  camera.x = x - ((x - camera.x) * zoom) / camera.zoom;
  camera.y = y - ((y - camera.y) * zoom) / camera.zoom;
  camera.zoom = zoom;
  draw();
}

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

function flyTo(box, zoom = Math.max(camera.zoom, 0.85)) {
  const target = {
    zoom,
    x: canvas.clientWidth / 2 - (box.x + box.w / 2) * zoom,
    y: canvas.clientHeight / 2 - (box.y + Math.min(box.h, 200) / 2) * zoom,
  };
  flyCamera(target);
}

function flyCamera(target) {
  cancelAnimationFrame(flight);
  if (isCalm.matches) {
    Object.assign(camera, target);
    return draw();
  }
  const start = { ...camera };
  const begin = performance.now();
  const step = (now) => {
    const t = Math.min(1, (now - begin) / 260);
    const ease = 1 - (1 - t) ** 3;
    for (const key of ["x", "y", "zoom"])
      camera[key] = start[key] + (target[key] - start[key]) * ease;
    draw();
    flight = t < 1 ? requestAnimationFrame(step) : 0;
  };
  flight = requestAnimationFrame(step);
}
let flight = 0;

function isComfortable(box) {
  const { x, y, w, h } = visiblePart();
  const margin = 30 / camera.zoom;
  return (
    camera.zoom >= DETAIL.text &&
    box.x > x + margin &&
    box.y > y + margin * 2 &&
    box.x + box.w < x + w - margin &&
    box.y + box.h < y + h - margin
  );
}

function pointAt(clientX, clientY) {
  const area = canvas.getBoundingClientRect();
  return [
    (clientX - area.left - camera.x) / camera.zoom,
    (clientY - area.top - camera.y) / camera.zoom,
  ];
}

// The wire at a point: its straight parts, or the region of a curve.
function wireAt(clientX, clientY) {
  const [x, y] = pointAt(clientX, clientY);
  const reach = 5 / camera.zoom;
  const isNear = (a, b, at) => at > Math.min(a, b) - reach && at < Math.max(a, b) + reach;
  return scene.wires.find(({ points }) =>
    points.slice(1).some(([bx, by], n) => {
      const [ax, ay] = points[n];
      return isNear(ax, bx, x) && isNear(ay, by, y);
    }),
  );
}

function boxAt(clientX, clientY) {
  const [x, y] = pointAt(clientX, clientY);
  for (let i = scene.boxes.length - 1; i >= 0; i--) {
    const box = scene.boxes[i];
    if (x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h) return box;
  }
  return null;
}
