#!/usr/bin/env bash
# All benchmarks, each beside its floor and beside its peers, into build/bench/bench.md and bench.json.
# Usage: scripts/bench/run.sh [--quick] [--readme] [--only FILE] [--out FOLDER]
# --readme puts the table into README.md, too, if nothing failed. The full scale takes 20 to 40 minutes, --quick 5 to 15, and each
# benchmark is ended after 30. It makes the environments that it needs, the peers' too.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../_venv.sh"

prepare_venv "$root/.venv" "dev,aws,aws-async,postgres,local"
cd -- "$root"
exec "$venv/bin/python" scripts/bench/everything.py "$@"
