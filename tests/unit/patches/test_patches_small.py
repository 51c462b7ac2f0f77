"""Ranges of releases."""

from __future__ import annotations

import pytest

from envgen.app.patch_sources import versions_between
from envgen.errors import UsageError


def test_finished_releases_between_two_others() -> None:
    known = ["0.16.0", "0.9.2", "0.14.0", "0.14.0rc1", "0.14.1.post1", "0.20.2", "nonsense", "0.13.0"]
    assert versions_between(known, "0.13.0..0.16.0") == ["0.13.0", "0.14.0", "0.14.1.post1", "0.16.0"]
    assert versions_between(known, "1.0..2.0") == []


@pytest.mark.parametrize("text", ["", "0.13.0", "..", "0.13.0..", "a..b", "0.14.0..0.13.0"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match="not a range of releases"):
        versions_between(["0.13.0"], text)
