// The page's handles: search, filters, order, keys, light and dark.

const search = document.getElementById("search");
const filters = document.getElementById("filters");
const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");

const order = ["failed", "corrupt", "in doubt", "interrupted", "retrying", "running", "waiting", "started", "skipped", "re-run", "crashed", "committed"];
for (const mark of order) {
  const count = data.timeline.counts[mark];
  if (!count) continue;
  const cls = `t-${mark.replace(" ", "-")}`;
  const chip = make("button", { type: "button", cls, "aria-pressed": "false" }, make("span", { cls: `mark ${cls}` }), mark, make("b", { text: count.toLocaleString("en") }));
  chip.addEventListener("click", () => {
    const on = !chosen.marks.has(mark);
    if (on) chosen.marks.add(mark); else chosen.marks.delete(mark);
    chip.setAttribute("aria-pressed", on);
    box.scrollTop = 0;
    update();
  });
  filters.append(chip);
}

search.addEventListener("input", () => {
  chosen.text = search.value.trim().toLowerCase();
  box.scrollTop = 0;
  update();
});
document.getElementById("order").addEventListener("change", (event) => {
  chosen.order = event.target.value;
  box.scrollTop = 0;
  cursor = 0;
  update();
});
document.getElementById("fit").addEventListener("change", (event) => { chosen.fit = event.target.checked; draw(); });

box.addEventListener("scroll", drawSoon, { passive: true });
box.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  const at = Number(row.dataset.at);
  cursor = shown.places.indexOf(at);
  if (rows[at].scope) toggle(at, chosen.closed.has(at)); else show(at, false);
});

const steps = { ArrowDown: 1, ArrowUp: -1 };
box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = shown.places[cursor];
  const page = Math.max(Math.floor(box.clientHeight / rowHeight()) - 1, 1);
  if (event.key in steps) moveTo(cursor + steps[event.key]);
  else if (event.key === "PageDown") moveTo(cursor + page);
  else if (event.key === "PageUp") moveTo(cursor - page);
  else if (event.key === "Home") moveTo(0);
  else if (event.key === "End") moveTo(shown.places.length - 1);
  else if (event.key === "ArrowRight" && rows[at]?.scope) toggle(at, true);
  else if (event.key === "ArrowLeft" && rows[at]?.scope && !chosen.closed.has(at)) toggle(at, false);
  else if (event.key === "ArrowLeft" && rows[at]?.parent >= 0 && !shown.flat) moveTo(shown.places.indexOf(rows[at].parent));
  else if (event.key === "Enter" || event.key === " ") {
    if (rows[at]?.scope) toggle(at, chosen.closed.has(at)); else show(at, true);
  } else return;
  event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    search.focus();
  } else if (event.key === "Escape") {
    if (event.target === search && search.value) { search.value = ""; search.dispatchEvent(new Event("input")); } else hide(true);
  }
});

/** Brings a step into view wherever it is: filters that hide it are taken off. */
function reveal(id) {
  const at = byId.get(id);
  if (at === undefined) return;
  let place = shown.places.indexOf(at);
  if (place < 0) {
    for (const pressed of filters.querySelectorAll("[aria-pressed=true]")) pressed.setAttribute("aria-pressed", "false");
    chosen.marks.clear();
    chosen.text = search.value = "";
    for (let up = rows[at].parent; up >= 0; up = rows[up].parent) chosen.closed.delete(up);
    update();
    place = shown.places.indexOf(at);
  }
  box.scrollTop = place * rowHeight() - box.clientHeight / 2;
  moveTo(place);
  show(at, false);
}
for (const link of document.querySelectorAll("[data-step]")) {
  if (!byId.has(link.dataset.step)) { link.replaceWith(link.textContent); continue; }
  link.addEventListener("click", () => reveal(link.dataset.step));
}

overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); jump(event); });
overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });

function isDark() {
  const set = document.documentElement.dataset.theme;
  return set ? set === "dark" : dark.matches;
}
function tellTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  drawOverview();
  draw();
}
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  tellTheme();
});
dark.addEventListener("change", tellTheme);
addEventListener("resize", () => { drawOverview(); draw(); });

const height = Math.max(Math.min(rows.length, 22), 3) * rowHeight();
box.style.height = `min(62vh, ${height}px)`;
theme.hidden = false;
update();
tellTheme();
document.documentElement.dataset.ready = "yes";
