// The minimap, for scenes of which not all is in view.

const MOSTLY = 0.7; // of a scene of which so much is in view a map says nothing more

function paintMinimap() {
  const window = visiblePart();
  const seen = (start, length, whole) =>
    (Math.min(start + length, whole) - Math.max(start, 0)) / whole;
  const share = seen(window.x, window.w, scene.w) * seen(window.y, window.h, scene.h);
  minimap.hidden = share > MOSTLY || scene.boxes.length < 30;
  if (minimap.hidden) return;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [minimap.clientWidth, minimap.clientHeight];
  [minimap.width, minimap.height] = [w * ratio, h * ratio];
  const scale = Math.min((w - 12) / scene.w, (h - 12) / scene.h);
  Object.assign(minimap, {
    scale,
    left: (w - scene.w * scale) / 2,
    top: (h - scene.h * scale) / 2,
  });
  const context = minimap.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const draw = (box, color, alpha) => {
    context.globalAlpha = alpha;
    context.fillStyle = color;
    context.fillRect(
      minimap.left + box.x * scale,
      minimap.top + box.y * scale,
      Math.max(1, box.w * scale),
      Math.max(1, box.h * scale),
    );
  };
  for (const box of scene.boxes)
    if (box.kind === "card") draw(box, box.isBackward ? theme.role : theme.muted, 0.16);
    else if (box.kind === "node" && !box.isOpen)
      draw(box, theme.family[box.node.family], box.node.isBackward ? 0.5 : 0.9);
  context.globalAlpha = 1;
  for (const box of scene.boxes) if (marks.isFound(box)) draw(box, theme.found, 1);
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.strokeRect(
    minimap.left + window.x * scale,
    minimap.top + window.y * scale,
    window.w * scale,
    window.h * scale,
  );
}

function aimMinimap(event) {
  const area = minimap.getBoundingClientRect();
  const x = (event.clientX - area.left - minimap.left) / minimap.scale;
  const y = (event.clientY - area.top - minimap.top) / minimap.scale;
  camera.x = canvas.clientWidth / 2 - x * camera.zoom;
  camera.y = canvas.clientHeight / 2 - y * camera.zoom;
  draw();
}
