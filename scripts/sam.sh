#!/usr/bin/env bash
# The SAM command line, which it installs first if need be.
# Usage: scripts/sam.sh ARGUMENT ...      such as: scripts/sam.sh validate --lint
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

prepare_sam
cd -- "$root"
exec "$sam" "$@"
