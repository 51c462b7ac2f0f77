"""What the probe said of installed sources, kept between runs: see probe_sources.py. The last run of each service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgen.remembered import Record

if TYPE_CHECKING:
    from envgen.profile.model import Profile

LIMIT = 48 << 10  # characters: it travels in an argument, of which Linux takes 128 KiB


def recall(profile: Profile, service: str) -> Mapping[str, Any]:
    """What the last probe of this service asked to be told again, if these sources of ours asked it."""
    found = _record(profile, service).load() or {}
    answers = found.get("answers")
    return answers if found.get("made_by") == _maker() and isinstance(answers, dict) else {}


def remember(profile: Profile, service: str, answers: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Keep it, unless it is what was ``known`` already."""
    if answers and dict(answers) != dict(known) and len(repr(dict(answers))) < LIMIT:
        _record(profile, service).save({"made_by": _maker(), "answers": dict(answers)})


def _record(profile: Profile, service: str) -> Record:
    return Record("doctor", f"{profile.compose_name}.{service}")


def _maker() -> str:
    """Which release of ours, by the time of the file that puts the questions."""
    return str((Path(__file__).parent / "probe_sources.py").stat().st_mtime_ns)
