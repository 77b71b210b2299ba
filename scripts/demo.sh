#!/usr/bin/env bash
# Kills a compliance scan with SIGKILL half-way, resumes it, and checks that nothing was lost or done twice.
# Usage: scripts/demo.sh [FOLDER]      without FOLDER: made documents with known contents, and installed packages
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

workflow=functions.workflows.compliance_scan
folder=""
if [ $# -gt 1 ] || [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
  die "Usage: scripts/demo.sh [FOLDER]"
elif [ $# -eq 1 ]; then
  folder=$(cd -- "$1" 2>/dev/null && pwd -P) || die "$1 is no folder that can be read"
fi

# An environment of its own: without the development tools, so that the demo shows what a user installs.
prepare_venv "$root/.venv-demo" ""
durable="$venv/bin/durable"
python="$venv/bin/python"
export PYTHONPATH=$root # the example workflows are in the repository, not in the package
unset DURABLE_STORE DURABLE_WORKFLOWS

demo="$root/.demo"
rm -rf -- "$demo"
mkdir -p -- "$demo"
cd -- "$demo"

pid=""
# shellcheck disable=SC2317  # called by the trap
stop_scan() { if [ -n "$pid" ]; then kill -9 "$pid" 2>/dev/null || true; fi; }
trap stop_scan EXIT

broken=0
# promise TEXT COMMAND...: prints whether it holds; the demo goes on, so that all of them are seen.
promise() {
  local text=$1
  shift
  if "$@"; then
    say "  holds    $text"
  else
    say "  BROKEN   $text"
    broken=$((broken + 1))
  fi
}

holds() { ((${1})); } # an arithmetic condition over the variables below
lines_of() { if [ -f "$1" ]; then wc -l <"$1" | tr -d ' '; else echo 0; fi; }
distinct_of() { if [ -f "$1" ]; then sort -u -- "$1" | wc -l | tr -d ' '; else echo 0; fi; }
repeated_of() { sort -- "$1" | uniq -d | wc -l | tr -d ' '; }
most_often_of() { sort -- "$1" | uniq -c | sort -rn | awk 'NR == 1 {print $1}'; }

# input_for NAME: the workflow's input, with a report folder and a scan log of its own.
input_for() {
  "$python" - "$demo/$1" "$as_of" "${folders[@]}" <<'PY'
import json, sys
out, as_of, *folders = sys.argv[1:]
print(json.dumps({"folders": folders, "report_dir": out, "scan_log": out + ".scans", "as_of": as_of}))
PY
}

# The journal is a SQLite file, and each segment of a map says how many of its items are done; any tool could read it.
committed_scans() {
  "$python" - "$demo/demo.db" <<'PY'
import pathlib, sqlite3, sys
journal = sqlite3.connect(pathlib.Path(sys.argv[1]).as_uri() + "?mode=ro", uri=True)
query = "SELECT max(succeeded + failed) FROM segments WHERE run_id = 'demo' AND step_id = 'scan_document'"
print(journal.execute(query).fetchone()[0] or 0)
PY
}

as_of=$(date -u +%F) # of both runs: at midnight the two reports would differ for a good reason
if [ -n "$folder" ]; then
  folders=("$folder")
else
  "$python" "$root/scripts/make_documents.py" "$demo" # documents/, and truth.json beside it
  folders=("$demo/documents" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')")
fi

say "" "1. The whole scan, left alone: what the other one is compared with."
started=$SECONDS
"$durable" run "$workflow:compliance_scan" --input "$(input_for calm)" --run-id calm --store "sqlite:///$demo/calm.db" \
  >calm.log 2>&1 || { tail -n 20 calm.log >&2; die "The scan failed; its output is in $demo/calm.log"; }
total=$(distinct_of calm.scans)
say "   $total documents in $((SECONDS - started)) s."
[ "$total" -ge 20 ] || die "That is too few to be killed half-way; name a folder with at least 20 documents."

say "" "2. The same scan again, killed with SIGKILL when half of the documents have been begun."
"$durable" run "$workflow:compliance_scan" --input "$(input_for killed)" --run-id demo --store "sqlite:///$demo/demo.db" \
  >killed.log 2>&1 &
pid=$!
while [ "$(lines_of killed.scans)" -lt $((total / 2)) ] && kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
kill -9 "$pid" 2>/dev/null || true
code=0
wait "$pid" 2>/dev/null || code=$?
pid=""
[ "$code" -eq 137 ] || { tail -n 20 killed.log >&2; die "It ended by itself (exit code $code) before it could be killed."; }
begun=$(lines_of killed.scans)
committed=$(committed_scans)
in_flight=$((begun - committed))
say "   Killed. Scans committed: $committed; begun and not committed: $in_flight; not begun: $((total - begun))."
say "" "   durable show demo" ""
"$durable" show demo --store "sqlite:///$demo/demo.db" >show.log 2>&1 || { cat show.log >&2; die "show failed"; }
head -n 14 show.log | sed 's/^/   | /'
say "   | ... (all of it: $demo/show.log)"

say "" "3. Resumed:  durable resume demo --workflows $workflow"
started=$SECONDS
"$durable" resume demo --workflows "$workflow" --store "sqlite:///$demo/demo.db" >resumed.log 2>&1 ||
  { tail -n 20 resumed.log >&2; die "The resume failed; its output is in $demo/resumed.log"; }
scanned=$(lines_of killed.scans)
rest=$((scanned - begun))
again=$(repeated_of killed.scans)
say "   Done in $((SECONDS - started)) s: $rest scans, $again of them of a document that had been begun before."

say "" "4. What was promised"
same_reports() { cmp -- calm/compliance.json killed/compliance.json && cmp -- calm/compliance.csv killed/compliance.csv; }
seen=$(distinct_of killed.scans)
most=$(most_often_of killed.scans)
promise "it was killed half-way: $committed of $total scans were committed" \
  holds "committed > 0 && committed < total"
promise "nothing is missing: $seen of $total documents were scanned" \
  holds "seen == total"
promise "no committed scan ran again: $again ran twice, none more often, and $in_flight were not committed at the kill" \
  holds "again <= in_flight && most <= 2"
promise "no more than a handful had to run again: $in_flight, with 4 in work at a time" \
  holds "in_flight <= 8"
promise "the resumed run did only the rest: $rest scans, and $((total - committed)) were not committed" \
  holds "rest == total - committed"
promise "the report of the killed run is the same, byte for byte ($(wc -c <killed/compliance.json | tr -d ' ') bytes)" \
  same_reports

if [ -z "$folder" ]; then
  say "" "5. What the scan found, against what was put into the made documents"
  promise "precision and recall could be computed" \
    "$python" "$root/scripts/score_scan.py" "$demo/killed/compliance.json" "$demo/truth.json"
fi

say "" "Files, in $demo:"
say "  killed/     the report of the killed and resumed run (compliance.json, compliance.csv)" \
  "  calm/       the report of the run that was left alone" \
  "  *.scans     one line for each scan that really ran" \
  "  *.db        the journals:  '$durable' show demo --store 'sqlite:///$demo/demo.db'"
[ "$broken" -eq 0 ] || die "" "$broken of the promises above did not hold."
say "" "A scan was killed without warning and went on where it had stopped: what was committed was not done again," \
  "what was in flight was, and the report came out as if nothing had happened."
