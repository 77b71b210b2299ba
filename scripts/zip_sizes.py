"""Print how large each function is that `scripts/build.sh` has built: zipped, as Lambda takes it, and raw.

python scripts/zip_sizes.py .aws-sam/build
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Final, NamedTuple

_ENTRY_BYTES: Final = 150  # of a zip, for each file, beside its name, which is there twice


class Size(NamedTuple):
    """How large a function is, in bytes."""

    zipped: int
    raw: int


def sizes(folder: Path) -> dict[str, Size]:
    """The size of each function in a folder of built ones; what they share is compressed once."""
    known: dict[tuple[int, int], int] = {}
    found = {}
    for function in sorted(path.parent for path in folder.glob("*/app.py")):
        zipped = raw = 0
        for path in (one for one in function.rglob("*") if one.is_file()):
            stat = path.stat()
            place = (stat.st_dev, stat.st_ino)
            if place not in known:
                known[place] = len(zlib.compress(path.read_bytes(), 6))
            zipped += known[place] + _ENTRY_BYTES + 2 * len(str(path.relative_to(function)))
            raw += stat.st_size
        found[function.name] = Size(zipped, raw)
    return found


def main() -> None:
    """Prints a line for each function."""
    for name, size in sizes(Path(sys.argv[1])).items():
        print(f"{name:12} {size.zipped / 2**20:6.1f} MiB zipped {size.raw / 2**20:7.1f} MiB raw")


if __name__ == "__main__":
    main()
