"""`envgen status`, with an engine that answers, and one that does not."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from test_cli_services import container

from envgen import cli
from envgen.app import prune
from envgen.engine.owner import WORKING_DIR
from envgen.engine.values import Container, ContainerRow, Image, image_of
from envgen.errors import EngineError, ExitCode
from envgen.lock.model import Lock, save
from envgen.profile.load import load_project
from envgen.render.inputs import label_of
from envgen.render.outputs import render_profile

FILE = """
version: 1
name: unit
default_profile: dev
defaults: {base: {image: base:1}, cuda: {arch_list: 12.1a}, gpu: none}
profiles:
  prod: {mode: production}
  dev:
    mode: development
    caches: {things: {path: /things}}
    sources:
      lib: {origin: {checkout: lib}, package: lib, distribution: lib, mount: /code/lib}
    services: {web: {command: [web]}}
"""


class StubEngine:
    """An image that is older than the profile, and two containers."""

    def image(self, name: str) -> Image:
        return Image(
            "sha256:0123456789abcdef", {"dev.envgen.render": "x"}, "2026-01-02T03:04:05Z", 1, "amd64", (name,), {}
        )

    def leftovers(self) -> tuple[()]:
        return ()

    def images(self, _label: str) -> tuple[()]:
        return ()

    def volumes(self, *_: object, **__: object) -> dict[str, str]:
        return {}

    def containers(self, _project: str = "", *, all: bool) -> tuple[Container, ...]:
        return (container("web"), container("web", one_off=True))

    def listed(self) -> tuple[ContainerRow, ...]:
        labels = {"com.docker.compose.project": "unit-old", WORKING_DIR: str(Path.cwd() / "compose")}
        return (ContainerRow("1", "unit-old-web-1", labels), ContainerRow("2", "else", {**labels, WORKING_DIR: "/x"}))

    def info(self) -> Any:
        return SimpleNamespace(local=True)

    def logs(self, _container: str, **_: object) -> str:
        return "WARNING 06-26 15:11:37 [envs.py:1] Unknown vLLM environment variable detected: VLLM_USE_V1\n"


def ask(monkeypatch: pytest.MonkeyPatch, engine: StubEngine | None, *words: str) -> str:
    def connect(_environ: object = None) -> StubEngine:
        if engine is None:
            raise EngineError("the Docker Engine is not running")
        return engine

    monkeypatch.setattr("envgen.deployment.host.connect", connect)
    done = CliRunner().invoke(cli.main, ["status", *words], standalone_mode=False)
    assert done.exception is None and done.return_value == (0 if engine else ExitCode.ENGINE), done.exception
    return done.output


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(FILE)
    return tmp_path


def test_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = ask(monkeypatch, StubEngine())
    for text in (
        "dev (development)", "others: prod", "unit:dev (0123456789ab), differs from the profile",
        "no envgen.lock", "also        unit-old-web-1 (this project's name before: docker compose -p unit-old down)",
        "/things  unit-dev-cache-things", "web (run)",
        "note  unit-prod-web-1: a variable is set that this vLLM does not know",
    ):  # fmt: skip
        assert text in screen


@pytest.mark.parametrize(("size", "shown"), [((1 << 30) - 1, False), (3 << 30, True)])
def test_leftovers_have_a_line_from_a_gibibyte_on(monkeypatch: pytest.MonkeyPatch, size: int, shown: bool) -> None:
    items = [prune.Item("volume", "old", size, "old", lambda: None)]
    monkeypatch.setattr(prune, "find", lambda *_: iter(items))
    screen = ask(monkeypatch, StubEngine())
    assert ("disk        3GiB that nothing needs: envgen prune --dry-run" in screen) is shown


def test_what_made_the_image_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and values, as far as the image says what it was built from; an image of an older envgen says nothing."""
    assert json.loads(ask(monkeypatch, StubEngine(), "--json"))["image"]["changed"] == []
    deployment = load_project(file=Path("envgen.yaml")).project
    now = render_profile(deployment.profiles["dev"], root=deployment.root).inputs
    before = {**now, "base.image": "base:0", "docker/build/protect": "#00000000", "apt.build": "git"}
    labels = {"dev.envgen.render": "x", "dev.envgen.inputs": label_of(before)}
    engine = StubEngine()
    monkeypatch.setattr(engine, "image", lambda name: replace(StubEngine().image(name), labels=labels))
    screen = ask(monkeypatch, engine)
    for line in ("apt.build: git → nothing", "base.image: base:0 → base:1", "docker/build/protect changed"):
        assert f"\n            {line}\n" in screen
    rows = json.loads(ask(monkeypatch, engine, "--json"))["image"]["changed"]
    change = {"name": "base.image", "before": "base:0", "after": "base:1", "text": "base.image: base:0 → base:1"}
    assert change in rows


def test_an_image_that_is_gone_below_a_running_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = load_project(file=Path("envgen.yaml")).project
    digest = render_profile(deployment.profiles["dev"], root=deployment.root).digest
    engine = StubEngine()
    monkeypatch.setattr(engine, "image", lambda _name: None)
    assert "unit:dev is not built" in ask(monkeypatch, engine)
    running = replace(container("web"), labels={"dev.envgen.render": digest, "dev.envgen.variant": "small"})
    monkeypatch.setattr(engine, "containers", lambda _project="", *, all: (running,))
    screen = ask(monkeypatch, engine)
    assert "unit:dev was removed, but containers still run it" in screen and "web (small)" in screen


def test_files_that_are_not_what_is_built(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(cli.main, ["render"], standalone_mode=False).return_value == 0
    assert "\nfiles " not in ask(monkeypatch, StubEngine())
    (project / "envgen.yaml").write_text(FILE.replace("[web]", "[web, --more]"))
    assert "files       out of date: compose/dev.yaml; update" in ask(monkeypatch, StubEngine())
    assert json.loads(ask(monkeypatch, StubEngine(), "--json"))["drift"] == ["compose/dev.yaml"]


def test_the_time_is_of_the_build_not_of_its_inputs() -> None:
    document = {"Created": "2020-01-01T00:00:00Z", "Metadata": {"LastTagTime": "2026-05-06T07:08:09Z"}}
    assert image_of(document).tagged == "2026-05-06T07:08:09Z"
    assert image_of({"Metadata": {"LastTagTime": "0001-01-01T00:00:00Z"}}).tagged == ""


def test_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(ask(monkeypatch, StubEngine(), "--json"))
    assert found["image"]["state"] == "differs" and found["engine"] == {"ok": True, "error": None}
    assert [one["one_off"] for one in found["containers"]] == [False, True]
    assert found["lock"] == {"state": "missing", "stale": []}


def test_without_an_engine_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, engine = ask(monkeypatch, None), json.loads(ask(monkeypatch, None, "--json"))["engine"]
    assert "engine      the Docker Engine is not running" in screen and "no envgen.lock" in screen
    assert engine == {"ok": False, "error": "the Docker Engine is not running"}


def test_an_unreadable_lock_is_no_trouble_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envgen.lock").write_text("")
    screen = ask(monkeypatch, StubEngine())
    assert "image       unknown: envgen.lock: this envgen reads lock files" in screen and "engine " not in screen


def test_everything_is_looked_up_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is connected, the files are rendered, and the lock is read."""
    counts = Counter[str]()

    def counted(place: str) -> None:
        module, _, name = place.rpartition(".")
        work = getattr(importlib.import_module(module), name)

        def count(*words: Any, **options: Any) -> Any:
            counts[name] += 1
            return work(*words, **options)

        monkeypatch.setattr(place, count)

    save(project / "envgen.lock", Lock())
    for module in ("deployment.image", "render.outputs"):
        counted(f"envgen.{module}.load")
        counted(f"envgen.{module}.render_profile")
    ask(monkeypatch, StubEngine())
    assert counts == {"load": 1, "render_profile": 1}
