#!/usr/bin/env bash
# Validates the template, builds the functions for Lambda and deploys them, with the settings in samconfig.toml.
# Usage: scripts/deploy.sh [dev|prod] [ARGUMENT OF sam deploy ...]      SAM=… names a SAM of yours
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

stage=dev
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  stage=$1
  shift
fi
case $stage in dev | prod) ;; *) die "Usage: scripts/deploy.sh [dev|prod] [ARGUMENT OF sam deploy ...]" ;; esac
prepare_sam
cd -- "$root"
"$sam" validate --lint --config-env "$stage"
bash scripts/build.sh arm64
exec "$sam" deploy --config-env "$stage" "$@"
