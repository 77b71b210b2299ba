#!/usr/bin/env bash
# All benchmarks, each beside its floor and beside its peers, into build/bench/bench.md and bench.json.
# Usage: scripts/bench/run.sh [--quick] [--only FILE] [--out FOLDER]
# The full scale takes the better part of an hour. It makes the environments that it needs, the peers' too.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../_venv.sh"

prepare_venv "$root/.venv" "dev,aws,aws-async,postgres,local"
cd -- "$root"
exec "$venv/bin/python" scripts/bench/everything.py "$@"
