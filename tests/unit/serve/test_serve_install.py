"""Why mounted sources could not be installed: the last line, or the full disk that is behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests_render_make import profile

from envgen.deployment import Deployment
from envgen.errors import ServiceError
from envgen.profile.model import Profile
from envgen.serve.launch import Launcher, in_profile

# What uv and envgen-install print for an overlay on a volume of 1 MiB.
FULL = """\
error: Failed to install: trove_classifiers-2026.9.21.13-py3-none-any.whl (trove-classifiers==2026.9.21.13)
cause: failed to copy file from /root/.cache/uv/x to /opt/envgen/env/lib/y: No space left on device (os error 28)
envgen: lib: its build needs hatchling, which could not be installed: write it into pip.tools
"""
OTHER = "envgen: lib: its build needs hatchling, which could not be installed: write it into pip.tools\n"


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (FULL, "(exit code 1): the disk of the engine is full", "docker system df"),
        (
            OTHER,
            "(exit code 1): lib: its build needs hatchling",
            "envgen run --profile dev web sh",
        ),
        ("", "(exit code 1)", "envgen run --profile dev web sh"),
    ],
)
def test_why(text: str, reason: str, hint: str) -> None:
    def stream(*_: str, on_line: Callable[[str], None]) -> Any:
        for line in text.splitlines():
            on_line(line)
        return SimpleNamespace(code=1)

    here = Deployment(profile(name="dev"), Path()).knowing(compose=SimpleNamespace(stream=stream))
    launcher = Launcher(here, "web", lambda _line: None)
    with pytest.raises(ServiceError) as raised:
        launcher._install("run")
    (problem,) = raised.value.problems
    assert reason in problem.message and hint in problem.hint


def test_the_commands_of_a_cure_name_the_profile() -> None:
    cure = "`envgen exec SERVICE -- ps`, services.SERVICE.args, or `envgen predict SERVICE`"
    expected = "`envgen exec --profile prod web -- ps`, services.web.args, or `envgen predict --profile prod web`"
    assert in_profile(cure, profile(name="prod"), "web") == expected


@pytest.mark.parametrize("created", [False, True])
def test_ctrl_c_while_sources_are_installed_removes_what_was_begun(
    created: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was made keeps starting: only the waiting for it ends."""
    removed: list[object] = []

    def interrupted(self: Launcher, *_how: str) -> None:
        self.created = created
        raise KeyboardInterrupt

    services = {"web": SimpleNamespace(interactive=False)}
    found = cast(Profile, SimpleNamespace(compose_name="unit-dev", services=services))
    here = Deployment(found, Path()).knowing(engine=SimpleNamespace(containers=lambda *_, **__: ()))
    launcher = Launcher(here, "web", lambda _line: None)
    monkeypatch.setattr("envgen.serve.launch.preflight.is_development", lambda _profile: True)
    monkeypatch.setattr(Launcher, "_alone", lambda _self: nullcontext())
    monkeypatch.setattr(Launcher, "_install", interrupted)
    monkeypatch.setattr(Launcher, "_clean_up", lambda _self, before: removed.append(before))
    with pytest.raises(KeyboardInterrupt):
        launcher.start(wait=True, timeout=None)
    assert removed == ([] if created else [set()])
