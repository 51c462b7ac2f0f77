"""What --fix plans, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app.doctor import nearby
from envgen.doctor import fix, remedies
from envgen.doctor.model import Context, error, ok
from envgen.engine.values import ExecResult, Mount
from envgen.errors import EnvgenError

Make = Callable[..., Context]


class Hand:
    """An engine that notes what it is asked to run."""

    def __init__(self, code: int = 0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.code = code

    def exec(self, container: str, argv: list[str], *, user: str = "", timeout: float = 0) -> ExecResult:
        self.asked.append((container, argv, user))
        return ExecResult(self.code, b"", b"first\nlast words")


def checkout(folder: Path, package: str = "flashinfer") -> Path:
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / "pyproject.toml").touch()
    return folder


def test_a_checkout_beside_the_project_is_found(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    assert nearby("flashinfer", "flashinfer", [project]) == []
    one = checkout(tmp_path / "flashinfer")
    assert nearby("flashinfer", "flashinfer", [project]) == [one]
    (project / "flashinfer").symlink_to(one)  # the same one, by another name
    assert nearby("flashinfer", "flashinfer", [project]) == [one]


def test_two_places_are_no_answer_and_a_bare_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "src" / "flashinfer" / "flashinfer").mkdir(parents=True)
    assert nearby("flashinfer", "flashinfer", [tmp_path]) == []
    checkout(tmp_path / "a" / "flashinfer")
    checkout(tmp_path / "b" / "flashinfer")
    assert len(nearby("flashinfer", "flashinfer", [tmp_path / "a", tmp_path / "b"])) == 2


def plan(context: Context, *findings: Any, hand: Hand | None = None) -> list[fix.Fix]:
    return fix.plan(context, findings, hand or Hand(), Path("/nowhere"))  # type: ignore[arg-type]


def install(context: Context, check: str = "packages.metadata") -> Any:
    cure = remedies.install(context, "flashinfer", context.profile.sources["flashinfer"])
    return replace(error("t", "s", "e", cure, case="c"), check=check)


def test_a_lost_install_is_made_again(make: Make) -> None:
    context, hand = make(), Hand()
    (step,) = plan(context, install(context), install(context), hand=hand)
    assert "envgen-install flashinfer" in step.how
    step.act()
    assert context.container and hand.asked == [(context.container.id, ["envgen-install", "flashinfer"], "")]


def test_what_only_looks_installed_is_installed_by_force(make: Make) -> None:
    context = make()
    (step,) = plan(context, install(context, "flashinfer.data"))
    assert "envgen-install --force flashinfer" in step.how


def test_a_step_that_fails_says_why(make: Make) -> None:
    context = make()
    (step,) = plan(context, install(context), hand=Hand(code=3))
    with pytest.raises(EnvgenError, match=r"exit code 3.*last words"):
        step.act()


def cache(context: Context, name: str = "flashinfer") -> Any:
    cure = remedies.command("chown")
    return replace(error("t", "s", "e", cure, case="not-writable", cache=name), check="mounts.caches")


def with_mount(context: Context, read_only: bool) -> Context:
    assert context.container
    mount = Mount("/host/cache", "/root/.cache/flashinfer", read_only=read_only)
    probe = SimpleNamespace(system=SimpleNamespace(uid=1000, gid=1001))  # all that is asked of it here
    return replace(context, probe=probe, container=replace(context.container, mounts=(mount,)))  # type: ignore[arg-type]


def test_a_cache_is_handed_over_as_root_inside(make: Make) -> None:
    context, hand = with_mount(make(), read_only=False), Hand()
    (step,) = plan(context, cache(context), hand=hand)
    step.act()
    (_, argv, user), *_ = hand.asked
    assert argv[:4] == ["chown", "-R", "-h", "1000:1001"] and argv[-1] == "/root/.cache/flashinfer" and user == "0"


def test_root_that_may_not_write_is_given_nothing(make: Make) -> None:
    """Under userns-remap root in a container may not chown folders of the machine."""
    context = with_mount(make(), read_only=False)
    system = SimpleNamespace(uid=0, gid=0)
    assert plan(replace(context, probe=SimpleNamespace(system=system)), cache(context)) == []  # type: ignore[arg-type]


def test_nothing_is_done_to_a_read_only_mount_or_an_unknown_folder(make: Make) -> None:
    assert plan(with_mount(make(), read_only=True), cache(make())) == []
    assert plan(with_mount(make(), read_only=False), cache(make(), "another")) == []
    assert plan(make(), ok("all is well")) == []


def test_without_a_running_container_nothing_is_done_inside(make: Make) -> None:
    context = make()
    assert plan(replace(context, container=None), install(context), cache(context)) == []
