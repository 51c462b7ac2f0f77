"""Names that are others': of caches, of vLLM's flags and variables, of Compose's keys."""

from __future__ import annotations

from pathlib import Path

import yaml

from envgen.binding import JsonDict

NAMES: JsonDict = yaml.load(
    Path(__file__).with_suffix(".yaml").read_bytes(),
    Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
