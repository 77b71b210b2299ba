#!/usr/bin/env bash
# Installs the system packages (Debian, Ubuntu, macOS) that the tests need beyond Python. The one place that names them.
set -euo pipefail

if [ "$(uname -s)" = Darwin ]; then
  # make comes with Xcode's command line tools, and what needs strace isn't tried on macOS.
  if [ ! -d "/Applications/Google Chrome.app" ] && ! command -v chromium >/dev/null; then
    command -v brew >/dev/null || {
      echo "Google Chrome is missing, and brew is not here to install it" >&2
      exit 1
    }
    brew install --quiet --cask google-chrome
  fi
  xcode-select --print-path >/dev/null || {
    echo "make is missing: xcode-select --install" >&2
    exit 1
  }
  echo "System packages: everything is here."
  exit 0
fi

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
