"""Run what template.yaml deploys on this machine, without Docker and AWS: `durable local-cloud`, in a clone.

    .venv/bin/python scripts/local_cloud.py [--from-source] [--logs FOLDER] ...      all options: --help

Functions are built first, for this Python, unless they are run from source.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def main() -> int:
    """Builds, then runs the command."""
    sys.path.insert(0, str(ROOT))
    from durable_core.cli.app import execute

    args = sys.argv[1:]
    if not {"--from-source", "-h", "--help"} & set(args):
        environment = {**os.environ, "PYTHON": sys.executable}
        subprocess.run(["bash", str(ROOT / "scripts" / "build.sh"), "host"], env=environment, check=True)
    return execute(["local-cloud", "--project", str(ROOT), *args])


if __name__ == "__main__":
    sys.exit(main())
