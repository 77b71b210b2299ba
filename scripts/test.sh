#!/usr/bin/env bash
# Everything that must hold, from a fresh clone: style, format, types, tests.
# Usage: scripts/test.sh [PYTEST ARGUMENT ...]
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

# The tests of every store run in one go, so their clients are installed too.
prepare_venv "$root/.venv" "dev,aws,aws-async,postgres,local"
bin="$venv/bin"
PATH="$bin:$PATH"
export PATH

failed=()
summary=()

# check NAME COMMAND...: runs it, remembers how it went, and goes on, so that one run shows everything that is wrong.
check() {
  local name=$1 started=$SECONDS
  shift
  say "" "== $name"
  if "$@"; then
    summary+=("ok      $name ($((SECONDS - started)) s)")
  else
    summary+=("FAILED  $name ($((SECONDS - started)) s)")
    failed+=("$name")
  fi
}

cd -- "$root"
check "ruff check" "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check "mypy" "$bin/mypy"
if [ $# -eq 0 ]; then
  # Most tests wait for a process, a server or a disk: three of them fill two cores. Each has servers of its own.
  set -- -n "$("$bin/python" -c 'import os; print(min(8, 1 + (os.cpu_count() or 1)))')" --dist worksteal
fi
check "pytest" "$bin/pytest" "$@"

say "" "Summary"
printf '  %s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  say "Not everything holds: ${#failed[@]} of ${#summary[@]} checks failed."
  exit 1
fi
say "Everything holds: ${#summary[@]} of ${#summary[@]} checks passed."
