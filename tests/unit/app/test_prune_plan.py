"""What prune finds in a project, and whose volumes it leaves alone. tests/engine/test_prune.py has the real engine."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import prune
from envgen.app.upgrade import journal
from envgen.engine.owner import FOLDER
from envgen.profile.load import load_project
from envgen.render.outputs import RENDER_LABEL

DAY = 86400.0
MONTH = 31 * DAY


def put(path: Path, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "FILES", {"log": ("logs", 3, 7), "crash": ("crash", 2, 30)})


def left(root: Path, *kept: str) -> set[str]:
    """What is removed, and is really gone."""
    items = [item for kind in prune.FILES for item in prune._old(root, kind, kept)]
    assert not any(prune.remove(items))
    return {item.name for item in items}


@pytest.mark.parametrize(
    ("days", "logs", "bundles"), [(40, "0345", "345"), (8, "0345", "012345"), (6, "012345", "012345")]
)
def test_the_newest_logs_and_crash_bundles_stay_and_young_ones_and_what_a_way_back_needs(
    tmp_path: Path, days: int, logs: str, bundles: str
) -> None:
    for number in range(6):
        put(tmp_path / f".envgen/logs/build-{'zab'[number % 3]}-{number}.log", age=days * DAY + 100 - number)
        put(tmp_path / f".envgen/crash/{number}-serve.tar.gz", age=days * DAY + 100 - number)
    gone = left(tmp_path, "build-z-0", "3-")
    assert len(gone) == 12 - len(logs) - len(bundles)
    assert "".join(sorted(path.name[-5] for path in (tmp_path / ".envgen/logs").iterdir())) == logs
    assert "".join(sorted(path.name[0] for path in (tmp_path / ".envgen/crash").iterdir())) == bundles


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    for number in range(9):
        put(tmp_path / f"victim/{number}.log", MONTH)
    root = tmp_path / "p"
    root.mkdir()
    (root / ".envgen").mkdir()
    (root / ".envgen/logs").symlink_to(victim)
    assert left(root) == set()
    assert len(list(victim.iterdir())) == 9


def test_what_can_not_be_removed_is_listed() -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    items = [prune.Item("log", "a", 1, "old", refuse), prune.Item("log", "b", 1, "old", lambda: "")]
    assert prune.remove(items) == ["Operation not permitted", ""]


TEXT = """\
version: 1
name: lab
profiles:
  prod:
    mode: production
    gpu: none
    base: {image: "base:1"}
    caches:
      flashinfer: {path: /root/.cache/flashinfer}
    services: {serve: {command: [sleep, infinity]}}
"""


def days_ago(days: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()


class Engine:
    """What a recorded engine has of a project."""

    def __init__(self, root: Path, before: float | None = None) -> None:
        self.root, self.before = root, before
        self.made: dict[str, str] = {}
        self.removed: list[str] = []
        self.elsewhere: set[str] = set()

    def image(self, name: str) -> Any:
        is_there = name.endswith("-before") and self.before is not None
        labels = {RENDER_LABEL: "0123456789abcdef" * 4}
        return SimpleNamespace(tagged=days_ago(self.before or 0), labels=labels) if is_there else None

    def images(self, _label: str) -> list[Any]:
        return []

    def leftovers(self) -> list[Any]:
        return []

    def containers(self, *_: object, **__: object) -> list[Any]:
        mount = SimpleNamespace(source="lab-prod-cache-flashinfer-111111111111")
        return [SimpleNamespace(id="c", image_id="i", mounts=[mount], labels={})]

    def info(self) -> Any:
        return SimpleNamespace(local=True)

    def volumes(self, _text: str = "", *, project: str = "") -> dict[str, str]:
        return {name: made for name, made in self.made.items() if name.startswith(project)}

    def volume_labels(self, name: str) -> dict[str, str]:
        return {FOLDER: "/elsewhere" if name in self.elsewhere else str(self.root)}

    def disk(self) -> tuple[dict[str, int], int]:
        return dict.fromkeys(self.made, 5 << 30), 0

    def remove_volume(self, name: str) -> None:
        self.removed.append(name)


def found(root: Path, engine: Engine) -> dict[str, str]:
    (root / "envgen.yaml").write_text(TEXT)
    items = list(prune.find(engine, load_project(root / "envgen.yaml").project))  # type: ignore[arg-type]
    assert not any(prune.remove(items))
    return {item.name: item.kind for item in items}


@pytest.mark.parametrize(("before", "gone"), [(None, True), (3.0, False), (40.0, True)])
def test_kernels_of_earlier_releases_go_unless_a_way_back_needs_them(
    tmp_path: Path, before: float | None, gone: bool
) -> None:
    engine, head = Engine(tmp_path, before), "lab-prod-cache-flashinfer-"
    engine.made = {
        head + "222222222222": days_ago(40), "lab-prod-env-333333333333": days_ago(40),
        head + "444444444444": days_ago(3),  # young
        head + "111111111111": days_ago(40),  # a container has it
        head + "555555555555": days_ago(40),  # another folder made it
        "lab-prod-cache-mine": days_ago(40), "lab-prod-data": days_ago(40),  # in no namespace; not envgen's
        "lab-prod2-cache-flashinfer-666666666666": days_ago(40),
    }  # fmt: skip
    engine.elsewhere = {head + "555555555555"}
    expected = {head + "222222222222": "volume", "lab-prod-env-333333333333": "volume"} if gone else {}
    assert found(tmp_path, engine) == expected
    assert engine.removed == list(expected)


@pytest.mark.parametrize(("before", "gone"), [(None, 4), (3.0, 2)])
def test_the_record_of_a_way_back_stays(tmp_path: Path, before: float | None, gone: int) -> None:
    prune.FILES["record"] = ("history", 2, 30)
    for end in ("yaml", "lock"):
        for age, name in enumerate(("prod-0123456789abcdef", "prod-ffffffffffffffff", "prod-eeeeeeeeeeeeeeee")):
            put(tmp_path / f".envgen/history/{name}.{end}", MONTH + 100 - age)
    assert len(found(tmp_path, Engine(tmp_path, before))) == gone
    assert (tmp_path / ".envgen/history/prod-0123456789abcdef.lock").exists() == (before is not None)


def test_an_upgrade_that_was_broken_off(tmp_path: Path) -> None:
    trial = journal.folder_of(tmp_path, "prod") / journal.TRIAL
    put(trial).write_text(json.dumps({"command": "envgen upgrade vllm", "of": "x", "services": {}}))
    assert found(tmp_path, Engine(tmp_path)) == {}
    os.utime(trial, (time.time() - MONTH,) * 2)
    with journal.alone(tmp_path, "prod"):  # somebody goes on with it
        assert found(tmp_path, Engine(tmp_path)) == {}
    assert found(tmp_path, Engine(tmp_path)) == {".envgen/candidate/prod": "trial"}
    assert not trial.exists()
