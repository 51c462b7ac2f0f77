"""Whether a lock names all that a build would fetch: only then is an image that fits used as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app.images import is_named
from envgen.deployment import Deployment


@pytest.mark.parametrize(
    ("base", "python", "wheelhouse", "named"),
    [
        (True, {"linux/arm64": 1}, None, True),
        (True, {}, None, True),  # no packages are fetched, or each is named by its own version
        (False, {"linux/arm64": 1}, None, False),
        (True, {}, "wheels", False),  # a folder of wheels may have changed
        (True, {"linux/arm64": 1}, "wheels", True),  # its wheels are locked with their hashes
    ],
)
def test_a_lock_that_names_everything(base: bool, python: dict[str, int], wheelhouse: str | None, named: bool) -> None:
    lock = SimpleNamespace(base="sha256:1" if base else "", python=python)
    profile = SimpleNamespace(build=SimpleNamespace(wheelhouse=wheelhouse))
    for one, expected in ((lock, named), (None, False)):
        deployment: Any = SimpleNamespace(lock=one, profile=profile)
        assert is_named(cast(Deployment, deployment)) is expected
