// All that is known of one step, beside the rows.

const details = document.getElementById("details");
const split = document.querySelector(".split");

function show(at, focus) {
  const row = rows[at];
  if (!row || row.scope) return;
  chosen.row = at;
  const close = make("button", { type: "button", text: "Close", "aria-label": "Close the details" });
  close.addEventListener("click", () => hide(true));
  details.replaceChildren(make("header", {}, make("h3", { text: row.id }), close), ...partsOf(row));
  details.hidden = false;
  split.classList.add("with-details");
  details.scrollTop = 0;
  if (focus) details.focus({ preventScroll: true });
  draw();
}

function hide(focus) {
  if (details.hidden) return;
  details.hidden = true;
  split.classList.remove("with-details");
  chosen.row = -1;
  if (focus) box.focus({ preventScroll: true });
  draw();
}

function partsOf(row) {
  const parts = [factsOf(row)];
  if (row.corrupt) parts.push(make("h4", { text: "Damaged" }), make("pre", { text: row.corrupt }));
  if (row.state === "in doubt") {
    parts.push(make("h4", { text: "In doubt" }), make("p", { text: "Its process is gone, and nobody knows how far it came. A resume runs it again with the same idempotency key, unless it is an at-most-once step." }));
  }
  if (row.error) {
    parts.push(make("h4", { text: "Error" }), make("pre", { text: row.error.traceback || `${row.error.type}: ${row.error.message}` }));
  }
  if (row.output !== undefined) parts.push(make("h4", { text: "Output" }), make("pre", { text: row.output }));
  if (row.output_note) parts.push(make("p", { cls: "dim", text: row.output_note }));
  if (row.attempts) parts.push(make("h4", { text: "Earlier attempts" }), attemptsOf(row));
  return parts;
}

function factsOf(row) {
  const state = make("span", { cls: `state ${tone(row)}` }, make("span", { cls: `mark ${tone(row)}` }), row.marks.join(", "));
  const at = (ms) => (ms === null || ms === undefined ? null : `${moment(ms)} (+${duration(ms)})`);
  const ms = took(row);
  const stored = row.output_hash ? `${bytes(row.output_size_bytes || 0)} as ${row.codec}, in the ${row.stored_in}` : null;
  const facts = [
    ["Status", state], ["Kind", row.kind === "step" ? null : row.kind], ["Items", row.items ? itemsOf(row.items) : null],
    ["Attempt", row.attempt], ["Crashes", row.crashes || null], ["Began", at(row.start)], ["Ended", at(row.end)],
    ["Took", ms === null ? null : duration(ms)], ["Output", stored], ["Fence", row.fence],
    ["Input hash", hash(row.input_hash)], ["Output hash", hash(row.output_hash)], ["Idempotency key", hash(row.idempotency_key)],
  ];
  const list = make("dl");
  for (const [name, value] of facts) {
    if (value === null || value === undefined) continue;
    const told = make("dd");
    told.append(value);
    list.append(make("dt", { text: name }), told);
  }
  return list;
}

const hash = (text) => (text ? make("span", { cls: "hash", text }) : null);

function attemptsOf(row) {
  const body = make("tbody");
  for (const one of row.attempts) {
    const ms = one.start === null || one.end === null ? "" : duration(one.end - one.start);
    body.append(make("tr", {},
      make("td", { text: one.attempt ?? "" }), make("td", { text: one.start === null ? "" : `+${duration(one.start)}` }),
      make("td", { text: ms }), make("td", { text: one.error ?? "" })));
  }
  const heads = ["Attempt", "Began", "Took", "Error"].map((text) => make("th", { text, scope: "col" }));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
}
