# shellcheck shell=bash
# Makes the virtual environments that the other scripts run in. Sourced, not run.

# A caller's own module path could hide a dependency that pyproject.toml lacks.
unset PYTHONPATH PYTHONHOME

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf "%s\n" "$@"; }
die() {
  printf '%s\n' "$@" >&2
  exit 1
}

# Sets `python` to the first interpreter that is new enough and can make virtual environments.
# Each is asked by running it: a version manager's shim may be on the PATH and yet not run.
find_python() {
  local candidate found too_old="" without_venv=""
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
    found=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      too_old="$candidate is Python $found"
    elif ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      without_venv=${without_venv:-$found}
    else
      python=$candidate
      return 0
    fi
  done
  if [ -n "$without_venv" ]; then
    die "Python $without_venv is here, but can't make virtual environments: its venv or ensurepip module is missing." \
      "On Debian or Ubuntu:  apt-get install python$without_venv-venv"
  fi
  die "Python 3.11 or newer is needed${too_old:+; $too_old}." \
    "Install it, or name it:  PYTHON=/path/to/python3.11 $0"
}

# What an environment was made from; another answer means that it has to be made anew.
# The folder counts too: an environment that was copied elsewhere still points to where it came from.
# fingerprint PYTHON FILES... -- FACTS...
fingerprint() {
  "$1" - "$root" "${@:2}" <<'PY'
import hashlib, pathlib, sys
end = sys.argv.index("--")
digest = hashlib.sha256()
for file in sys.argv[2:end]:
    digest.update(pathlib.Path(file).read_bytes() + b"\0")
for fact in (sys.version, sys.argv[1], *sys.argv[end + 1:]):
    digest.update(fact.encode() + b"\0")
print(digest.hexdigest())
PY
}

# make_venv FOLDER FILES... -- WHAT...: leaves FOLDER with what pip installs by WHAT, made anew if FILES have changed,
# and sets `venv` to it.
make_venv() {
  local stamp log
  venv=$1
  shift
  if [ -x "$venv/bin/python" ] && stamp=$(fingerprint "$venv/bin/python" "$@" 2>/dev/null) &&
    [ "$stamp" = "$(cat "$venv/made-from" 2>/dev/null)" ]; then
    return 0
  fi
  find_python
  say "Setting up ${venv##*/} with $("$python" --version) (a minute or so) ..." >&2
  "$python" -m venv --clear "$venv"
  log="$venv/install.log"
  local made_from=("$@")
  while [ "$1" != -- ]; do shift; done
  shift
  if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "The dependencies could not be installed; the whole log is in $log"
  fi
  fingerprint "$venv/bin/python" "${made_from[@]}" >"$venv/made-from"
}

# prepare_venv FOLDER EXTRAS: leaves FOLDER with this project and its extras installed, and sets `venv` to it.
prepare_venv() {
  make_venv "$1" "$root/pyproject.toml" "$root/constraints.txt" -- \
    --constraint "$root/constraints.txt" --editable "$root${2:+[$2]}"
}

# prepare_sam: sets `sam` to the SAM command line in an environment of its own, or to the one that SAM names, and
# `sam_python` to a Python beside it. What it needs contradicts what the package is tested with.
prepare_sam() {
  if [ -n "${SAM:-}" ]; then
    command -v "$SAM" >/dev/null || die "SAM=$SAM is no program."
    find_python
    sam=$SAM sam_python=$python
  else
    make_venv "$root/.venv-sam" "$root/infra/build/sam.txt" -- --requirement "$root/infra/build/sam.txt"
    # shellcheck disable=SC2034  # for who sources this
    sam="$venv/bin/sam" sam_python="$venv/bin/python"
  fi
  export SAM_CLI_TELEMETRY=0
}
