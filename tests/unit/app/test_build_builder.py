"""Builds by another builder than the engine's own."""

from __future__ import annotations

import pytest

from envgen.app.build import require_builder
from envgen.errors import RefusedError


def test_podman_builds_with_a_named_builder_alone() -> None:
    with pytest.raises(RefusedError, match="Podman has no BuildKit") as caught:
        require_builder("default", "Podman")
    assert "BUILDX_BUILDER=envgen envgen build" in caught.value.problems[0].hint
    require_builder("envgen", "Podman")
