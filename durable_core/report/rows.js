// The rows: only those in view are in the page, so that ten thousand scroll like ten.

const box = document.getElementById("rows");
const space = document.getElementById("space");
const axis = document.getElementById("axis");
const narrow = matchMedia("(max-width: 560px)");
let shown = { places: [], steps: 0, flat: false };
let cursor = 0; // place in `shown.places` that the arrow keys move
let range = [0, length];
let asked = false;

const rowHeight = () => (narrow.matches ? 34 : 28);
const percent = (ms) => ((ms - range[0]) / (range[1] - range[0])) * 100;

function view() {
  const height = rowHeight();
  const first = Math.max(Math.floor(box.scrollTop / height), 0);
  return [first, Math.min(first + Math.ceil(box.clientHeight / height) + 1, shown.places.length)];
}

function drawSoon() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

function draw() {
  const [first, last] = view();
  fitRange(first, last);
  const guides = drawAxis();
  const height = rowHeight();
  space.style.height = `${shown.places.length * height}px`;
  const made = [guides];
  guides.style.height = `${Math.max((last - first + 8) * height, box.clientHeight)}px`;
  guides.style.top = `${Math.max(first - 4, 0) * height}px`;
  for (let n = Math.max(first - 4, 0); n < Math.min(last + 4, shown.places.length); n += 1) made.push(rowOf(n, height));
  if (!shown.places.length) made.push(make("div", { cls: "none", text: "No step is like that." }));
  space.replaceChildren(...made);
  box.setAttribute("aria-rowcount", shown.places.length);
  const here = document.getElementById(`row-${cursor}`);
  if (here) box.setAttribute("aria-activedescendant", here.id); else box.removeAttribute("aria-activedescendant");
  drawView(first, last);
}

function fitRange(first, last) {
  range = [0, length];
  if (!chosen.fit) return;
  let low = Infinity;
  let high = -Infinity;
  for (let n = first; n < last; n += 1) {
    const row = rows[shown.places[n]];
    if (row.scope || row.start === null || row.start === undefined) continue;
    low = Math.min(low, row.start, ...(row.attempts || []).map((one) => one.start ?? Infinity));
    high = Math.max(high, row.end ?? length);
  }
  if (low < Infinity) range = [low, Math.max(high, low + 1)];
}

function drawAxis() {
  const span = range[1] - range[0];
  const wanted = Math.max(Math.floor(axis.clientWidth / 90), 1);
  const units = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];
  const unit = units.find((one) => span / one <= wanted) ?? 864e5 * Math.ceil(span / wanted / 864e5);
  const ticks = [];
  const lane = make("div", { cls: "lane" });
  for (let ms = Math.ceil(range[0] / unit) * unit; ms <= range[1]; ms += unit) {
    if (percent(ms) > 94) break;
    const tick = make("span", { text: ms === 0 ? "0" : duration(ms).replace(/\.0 s$/, " s").replace(/ 00 (s|min)$/, "") });
    const guide = make("i", { cls: "guide" });
    tick.style.left = guide.style.left = `${percent(ms)}%`;
    ticks.push(tick);
    lane.append(guide);
  }
  axis.replaceChildren(...ticks);
  axis.parentElement.style.paddingRight = `${14 + box.offsetWidth - box.clientWidth}px`; // beside the scroll bar
  return make("div", { cls: "row guides", "aria-hidden": "true" }, make("span"), lane);
}

function rowOf(n, height) {
  const at = shown.places[n];
  const row = rows[at];
  const made = make("div", {
    cls: `row ${tone(row)}${row.scope ? " scope" : ""}${n === cursor ? " here" : ""}`, role: "row", id: `row-${n}`,
    "aria-rowindex": n + 1, "aria-level": shown.flat ? 1 : row.depth + 1, "aria-selected": at === chosen.row, "data-at": at,
  });
  if (row.scope) made.setAttribute("aria-expanded", !chosen.closed.has(at));
  made.style.top = `${n * height}px`;
  const ms = row.scope ? (row.open ? null : took(row)) : took(row);
  const lane = make("div", { cls: "lane", role: "gridcell", "aria-label": spoken(row) });
  lane.append(...bars(row));
  made.append(
    nameOf(row, at), lane,
    make("span", { cls: "num", role: "gridcell", text: ms === null ? "" : duration(ms) }),
    make("span", { cls: "num tries", role: "gridcell", text: row.scope ? "" : row.attempt ?? "" }),
    make("span", { cls: "num size", role: "gridcell", text: row.output_size_bytes ? bytes(row.output_size_bytes) : "" }),
  );
  return made;
}

function nameOf(row, at) {
  const made = make("div", { cls: "name", role: "gridcell", title: row.id });
  made.style.paddingLeft = shown.flat ? "0" : `${Math.min(row.depth, 12) * 16}px`;
  if (row.scope) made.append(make("span", { cls: "twist", text: chosen.closed.has(at) ? "▶" : "▼", "aria-hidden": "true" }));
  else made.append(make("span", { cls: `mark ${tone(row)}` }));
  made.append(make("span", { cls: "text", text: shown.flat ? row.id : row.name + (row.scope ? "/" : "") }));
  if (row.scope) made.append(make("span", { cls: "tag", text: plural(row.count, "step") }));
  else if (row.marks[0] !== "committed") made.append(make("span", { cls: "tag", text: row.marks[0] }));
  if (!row.scope && row.crashes) made.append(make("span", { cls: "tag t-crashed", text: plural(row.crashes, "crash").replace("crashs", "crashes") }));
  else if (!row.scope && row.attempt > 1) made.append(make("span", { cls: "tag t-re-run", text: "re-run" }));
  if (row.items) made.append(make("span", { cls: "tag t-running", text: itemsOf(row.items) }));
  return made;
}

function itemsOf(items) {
  const of = items.total === null ? "" : ` of ${items.total.toLocaleString("en")}`;
  return `${items.done.toLocaleString("en")}${of} items${items.failed ? `, ${items.failed.toLocaleString("en")} failed` : ""}`;
}

function bars(row) {
  if (row.start === null || row.start === undefined) return [];
  const made = (row.attempts || []).filter((one) => one.start !== null).map((one) => bar("earlier", one.start, one.end ?? one.start));
  const open = row.end === null || row.end === undefined || (row.scope && row.open);
  made.push(bar(`${tone(row)}${open && !row.scope ? " open" : ""}`, row.start, open ? length : row.end));
  return made;
}

function bar(cls, start, end) {
  const made = make("i", { cls });
  const left = Math.min(Math.max(percent(start), 0), 99.6);
  made.style.left = `${left}%`;
  made.style.width = `${Math.max(Math.min(percent(end), 100) - left, 0)}%`;
  return made;
}

/** A row in words, for whoever doesn't see the bars. */
function spoken(row) {
  if (row.scope) return `branch of ${plural(row.count, "step")}`;
  const began = row.start === null || row.start === undefined ? "" : `, began ${duration(row.start)} after the start`;
  return `${row.marks.join(", ")}${began}`;
}

function update() {
  const kept = shown.places[cursor];
  shown = listed();
  cursor = Math.max(shown.places.indexOf(kept), 0);
  const all = data.timeline.rows.reduce((sum, row) => sum + (row.scope ? 0 : 1), 0);
  const out = data.timeline.left_out;
  document.getElementById("found").textContent = (shown.steps === all ? plural(all, "step") : `${plural(shown.steps, "step")} of ${all.toLocaleString("en")}`)
    + (out ? `; ${plural(out, "more committed step")} left out of this page` : "");
  space.style.height = `${shown.places.length * rowHeight()}px`;
  drawOverview();
  draw();
}

function moveTo(n) {
  if (!shown.places.length) return;
  cursor = Math.min(Math.max(n, 0), shown.places.length - 1);
  const height = rowHeight();
  const top = cursor * height;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
  draw();
}

function toggle(at, open) {
  if (!rows[at]?.scope || open === !chosen.closed.has(at)) return;
  if (chosen.closed.has(at)) chosen.closed.delete(at); else chosen.closed.add(at);
  update();
}
