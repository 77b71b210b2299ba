#!/usr/bin/env bash
# Builds the functions: for Lambda into .aws-sam/build, for the local cloud on this machine into .aws-sam/host.
# Usage: scripts/build.sh [arm64|host]      PYTHON=… names the Python that host functions are to run in
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/_venv.sh"

target=${1:-arm64}
case $target in
  arm64) into=.aws-sam/build ;;
  host) into=.aws-sam/host ;;
  *) die "Usage: scripts/build.sh [arm64|host]" ;;
esac
command -v make >/dev/null || die "make is needed. On Debian or Ubuntu:  apt-get install make"
prepare_sam
export PYTHON=${PYTHON:-$sam_python} DURABLE_BUILD_TARGET=$target # any that has pip will do for arm64
cd -- "$root"
make --silent --makefile infra/build/Makefile shared
"$sam" build --parallel --build-dir "$into"
"$PYTHON" scripts/zip_sizes.py "$into"
