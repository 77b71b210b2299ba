#!/usr/bin/env bash
# Installs the system packages (Debian, Ubuntu) that the tests need beyond Python. The one place that names them.
set -euo pipefail

packages=(
  chromium # opens the pages that `durable report` writes
  make # sam build calls infra/build/Makefile
  strace # tells every write and sync of SQLite, so that the power can be cut at each
)

missing=()
for package in ${packages[@]+"${packages[@]}"}; do
  dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "System packages: nothing to install."
  exit 0
fi
command -v apt-get >/dev/null || {
  echo "These system packages are missing, and apt-get is not here to install them: ${missing[*]}" >&2
  exit 1
}
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
echo "System packages: installing ${missing[*]} ..."
export DEBIAN_FRONTEND=noninteractive
${as_root[@]+"${as_root[@]}"} apt-get update -qq
${as_root[@]+"${as_root[@]}"} apt-get install -qq -y --no-install-recommends "${missing[@]}"
