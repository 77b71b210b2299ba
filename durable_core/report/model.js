"use strict";
// What the page knows, and which of it is shown. Nothing here touches the page.

const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.timeline.rows;
const length = data.timeline.length_ms;
const byId = new Map(rows.map((row, at) => [row.scope ? `${row.id}/` : row.id, at]));
const chosen = { text: "", marks: new Set(), order: "begun", closed: new Set(), fit: false, row: -1 };

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return unit ? `${count.toFixed(1)} ${units[unit]}` : `${count} B`;
}

const moment = (ms) => new Date(data.timeline.start_ms + ms).toISOString().replace("T", " ");
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const took = (row) => (row.start === undefined || row.start === null || row.end === undefined || row.end === null ? null : Math.max(row.end - row.start, 0));
const tone = (row) => (row.scope ? "t-scope" : `t-${row.marks[0].replace(" ", "-")}`);

// What a search looks through, made when it is first needed: ten thousand rows take some milliseconds.
const haystacks = new Array(rows.length);
function haystack(at) {
  if (haystacks[at] === undefined) {
    const row = rows[at];
    const error = row.error ? `${row.error.type} ${row.error.message}` : "";
    haystacks[at] = `${row.id}\n${error}\n${row.output || ""}\n${row.corrupt || ""}`.toLowerCase();
  }
  return haystacks[at];
}

function matches(at) {
  const row = rows[at];
  if (row.scope) return false;
  if (chosen.marks.size && !row.marks.some((mark) => chosen.marks.has(mark))) return false;
  return !chosen.text || haystack(at).includes(chosen.text);
}

const orders = {
  slowest: (row) => took(row) ?? -1,
  largest: (row) => row.output_size_bytes ?? -1,
  attempts: (row) => row.attempt ?? -1,
};

/** The places of the rows that are shown, in their order, and how many steps are among them. */
function listed() {
  const filtered = chosen.text !== "" || chosen.marks.size > 0;
  const found = [];
  if (chosen.order !== "begun") {
    const weight = orders[chosen.order];
    for (let at = 0; at < rows.length; at += 1) if (!rows[at].scope && matches(at)) found.push(at);
    found.sort((a, b) => weight(rows[b]) - weight(rows[a]) || a - b);
    return { places: found, steps: found.length, flat: true };
  }
  let steps = 0;
  const wanted = new Set();
  if (filtered) {
    for (let at = 0; at < rows.length; at += 1) {
      if (!matches(at)) continue;
      steps += 1;
      for (let up = at; up >= 0 && !wanted.has(up); up = rows[up].parent) wanted.add(up);
    }
  }
  const shut = new Set(); // rows whose scope, or one above it, is closed
  for (let at = 0; at < rows.length; at += 1) {
    const row = rows[at];
    const hidden = row.parent >= 0 && (shut.has(row.parent) || chosen.closed.has(row.parent));
    if (hidden && row.scope) shut.add(at);
    if (hidden || (filtered && !wanted.has(at))) continue;
    found.push(at);
  }
  if (!filtered) steps = rows.reduce((sum, row) => sum + (row.scope ? 0 : 1), 0);
  return { places: found, steps, flat: false };
}

/** An element with text and children; text is only ever text. */
function make(tag, { text, cls, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
