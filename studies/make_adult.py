"""Makes adult.csv.xz from adult.data and adult.test of the UCI repository: python -m studies.make_adult FOLDER adult.csv.xz.

Values stay as they are ("?" for unknown ones). A first column says which file a record is from; the dot that ends the labels of
adult.test is dropped.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

COLUMNS = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex capital_gain capital_loss "
    "hours_per_week native_country income"
)


def records(path: Path, part: str) -> list[str]:
    rows = [[cell.strip() for cell in line.rstrip(".").split(",")] for line in path.read_text().splitlines()]
    return [",".join([part, *row]) for row in rows if len(row) == len(COLUMNS.split())]


def main(folder: Path, output: Path) -> None:
    lines = [",".join(["part", *COLUMNS.split()])]
    lines += records(folder / "adult.data", "data") + records(folder / "adult.test", "test")
    output.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
