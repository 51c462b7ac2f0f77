"""What docs/doctor.md says of each finding; tests hold it against what the checks find."""

from __future__ import annotations

import re
from pathlib import Path

CHECKS: list[str] = []  # in the order of the page
DESCRIBED: dict[tuple[str, str], str] = {}  # (check, case) -> severity
for _line in (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8").splitlines():
    if _line.startswith("#### `"):
        CHECKS.append(_line.split("`")[1])
    elif _row := re.fullmatch(r"\| `([a-z0-9-]+)` \| (info|warning|error) \|( [^|]+ \|){1,2}", _line):
        assert (CHECKS[-1], _row[1]) not in DESCRIBED, _line
        DESCRIBED[CHECKS[-1], _row[1]] = _row[2]
