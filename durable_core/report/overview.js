// All rows at once, each a hair's breadth: where things are, and which of them are in view.

const overview = document.getElementById("overview");
let picture = null; // the rows as they were last drawn; only the frame round those in view moves

function colours() {
  const style = getComputedStyle(document.documentElement);
  const found = {};
  for (const name of ["committed", "failed", "in-doubt", "running", "waiting", "skipped", "retry"]) found[name] = style.getPropertyValue(`--${name}`).trim();
  return {
    ...found, corrupt: found.failed, interrupted: found["in-doubt"], retrying: found.retry, started: found.running,
    line: style.getPropertyValue("--ink").trim(),
  };
}

function drawOverview() {
  const scale = window.devicePixelRatio || 1;
  const width = overview.clientWidth;
  const height = overview.clientHeight;
  if (!width) return;
  picture = document.createElement("canvas");
  picture.width = overview.width = Math.round(width * scale);
  picture.height = overview.height = Math.round(height * scale);
  const brush = picture.getContext("2d");
  brush.scale(scale, scale);
  const colour = colours();
  const each = (height - 8) / Math.max(shown.places.length, 1);
  const thick = Math.min(Math.max(each * 0.7, 1.4), 6);
  shown.places.forEach((at, n) => {
    const row = rows[at];
    if (row.scope || row.start === null || row.start === undefined) return;
    const left = (row.start / length) * width;
    const right = ((row.end ?? length) / length) * width;
    brush.fillStyle = colour[row.marks[0].replace(" ", "-")] || colour.committed;
    brush.fillRect(left, 4 + n * each, Math.max(right - left, 2), thick);
  });
}

function drawView(first, last) {
  if (!picture) return;
  const brush = overview.getContext("2d");
  brush.setTransform(1, 0, 0, 1, 0, 0);
  brush.clearRect(0, 0, overview.width, overview.height);
  brush.drawImage(picture, 0, 0);
  const total = shown.places.length;
  if (last - first >= total) return;
  const scale = overview.height / overview.clientHeight;
  const height = overview.clientHeight - 8;
  const top = 4 + (first / total) * height;
  brush.scale(scale, scale);
  const frame = [0.5, Math.floor(top) + 0.5, overview.clientWidth - 1, Math.max(((last - first) / total) * height, 4)];
  brush.fillStyle = brush.strokeStyle = colours().line;
  brush.globalAlpha = 0.07;
  brush.fillRect(...frame);
  brush.globalAlpha = 0.35;
  brush.strokeRect(...frame);
  brush.globalAlpha = 1;
}

function jump(event) {
  const share = (event.offsetY - 4) / (overview.clientHeight - 8);
  box.scrollTop = share * shown.places.length * rowHeight() - box.clientHeight / 2;
}
