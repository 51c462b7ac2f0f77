"""Starts that worked, and what has changed since."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.app import history
from envgen.engine.box import Box, BoxGpu
from envgen.engine.values import ContainerMount
from envgen.profile.service import ModelRef

GOOD = {
    "driver": "580.142",
    "kernel": "6.17.0",
    "image": "aa11",
    "lock": "bb22",
    "command": "serve m",
    "GPU 0": "GB10",
}


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ({}, "nothing that envgen knows has changed"),
        ({"kernel": "7.0.1", "driver": "590.44"},
         "driver 580.142 → 590.44, kernel 6.17.0 → 7.0.1; the same: image, lock, command"),
        ({"lock": "cc", "image": "dd"}, "image aa11 → dd, lock bb22 → cc; the same: command"),
        ({"GPU 0": "H200", "command": "x" * 90},
         f"command serve m → {'x' * 59}…, GPU 0 GB10 → H200; the same: image, lock"),
    ],
)  # fmt: skip
def test_the_most_suspicious_change_comes_first(tmp_path: Path, now: dict[str, str], text: str) -> None:
    assert history.note(tmp_path, "prod", "serve", GOOD, 100, {"weights": 20.0}) == []
    noted = history.starts(tmp_path, "prod", "serve")
    assert history.since(noted[-1], GOOD | now).partition(" that worked: ")[2] == text
    assert noted[0].phases == {"weights": 20.0}


def test_what_only_one_side_knows_is_no_change() -> None:
    assert history.changes({"driver": "1", "a": "x"}, {"firmware": "2", "a": "x"}) == {}


def test_a_third_slower_start_names_what_changed_and_twenty_are_kept(tmp_path: Path) -> None:
    for _ in range(25):
        assert history.note(tmp_path, "p", "s", GOOD, 60, {}) == []
    assert len(history.starts(tmp_path, "p", "s")) == history.KEPT
    assert history.note(tmp_path, "p", "s", GOOD, 79, {}) == []
    slower, why = history.note(tmp_path, "p", "s", GOOD | {"driver": "590"}, 81, {})
    assert slower == "slower than usual: 81 s, 60 s before" and "driver 580.142 → 590" in why


@given(st.binary(max_size=60) | st.from_regex(rb'\{"format":1,"starts":\[.{0,20}\]\}'))
def test_a_damaged_file_is_no_history(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("p")
    path = root / ".envgen/starts/p.s.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert isinstance(history.starts(root, "p", "s"), list)
    history.note(root, "p", "s", GOOD, 5, {})
    assert history.starts(root, "p", "s")[-1].facts == GOOD


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "root/.envgen").symlink_to(tmp_path / "other")
    history.note(tmp_path / "root", "p", "s", GOOD, 5, {})
    assert not list((tmp_path / "other").iterdir()) and history.starts(tmp_path / "root", "p", "s") == []


MACHINE = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build\n",
    "/sys/class/dmi/id/bios_version": "5.36_0ACUM018\n",
    "/etc/dgx-release": 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\n',
}


def test_a_machine_says_what_it_has() -> None:
    assert set(history.READ) == set(MACHINE)
    expected = {"driver": "580.142", "firmware": "5.36_0ACUM018", "DGX OS": "7.2.3"}
    assert history.said_by(MACHINE) == expected
    assert history.said_by({"/proc/driver/nvidia/version": "none"}) == {}


def far(root: Path, node: str, kernel: str, files: dict[str, str], patch: pytest.MonkeyPatch) -> Any:
    """A service on another machine, whose container answers with its ``files``."""
    patch.setattr("envgen.inside.run.ask", lambda *_, **__: {"versions": {"torch": "2.13"}, "files": files})
    image = SimpleNamespace(id=f"sha256:{node}", labels={})
    engine = SimpleNamespace(info=lambda: SimpleNamespace(kernel=kernel, version="28"), logs=lambda *_, **__: "")
    deployment = SimpleNamespace(
        root=root,
        node=node,
        is_local=False,
        engine=engine,
        image=image,
        caches={},
        named=lambda text: f"{node}: {text}",
    )
    profile = SimpleNamespace(name="p", variant="", mounted_sources={}, checkouts={})
    described = SimpleNamespace(argv=["vllm"])
    return SimpleNamespace(name="s", deployment=deployment, engine=engine, profile=profile, described=described)


def test_each_machine_has_its_own_driver_and_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: Any = SimpleNamespace(container=SimpleNamespace(id="c"), seconds=5.0, awaited=SimpleNamespace(phases={}))
    newer = MACHINE | {"/proc/driver/nvidia/version": "Kernel Module for aarch64  590.44  Release"}
    first = far(tmp_path, "a", "6.17.0", MACHINE, monkeypatch)
    history.remember(first, started)
    second = far(tmp_path, "b", "7.0.1", newer, monkeypatch)
    history.remember(second, started)
    assert history.since_it_worked(second, asks=True).endswith("nothing that envgen knows has changed")
    far(tmp_path, "b", "", MACHINE, monkeypatch)  # it has gone back
    assert "driver 590.44 → 580.142; the same: image" in history.since_it_worked(second, asks=True)
    assert "nothing that envgen knows" in history.since_it_worked(second)  # which starts no container
    assert history.since_it_worked(first, asks=True).endswith("nothing that envgen knows has changed")


def test_packages_are_those_of_the_last_start_and_the_rest_of_many_is_a_number(tmp_path: Path) -> None:
    many = {f"package p{number:02}": "1" for number in range(12)}
    for _ in range(2):
        history.note(tmp_path, "p", "s", GOOD | many, 5, {})
    first, last = history.starts(tmp_path, "p", "s")
    assert first.facts == GOOD and last.facts == GOOD | many
    text = history.since(last, GOOD | dict.fromkeys(many, "2"))
    assert "package p00 1 → 2" in text and "package p07 1 → 2, and 4 more; the same: image" in text


def test_the_commit_of_weights_is_that_of_the_folder_that_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = far(tmp_path, "a", "6.17.0", {}, monkeypatch)
    service.deployment.is_local = True
    monkeypatch.setattr(history, "machine_facts", dict)
    service.deployment.caches = {"huggingface": ContainerMount(str(tmp_path), "/weights")}
    service.described.models = [ModelRef("openai/gpt-oss-20b"), ModelRef("a/absent")]
    main = tmp_path / "hub/models--openai--gpt-oss-20b/refs/main"
    main.parent.mkdir(parents=True)
    main.write_text("a" * 40)
    before = history.facts_of(service)
    main.write_text("b" * 40)
    assert history.changes(before, history.facts_of(service)) == {
        "weights openai/gpt-oss-20b": f"weights openai/gpt-oss-20b {'a' * 40} → {'b' * 40}"
    }


@pytest.mark.parametrize(("gib", "text"), [(90, ""), (60, "free memory, GiB 110.0 → 60.0, ")])
def test_a_start_that_finds_less_memory_and_a_hot_gpu_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, text: str
) -> None:
    service = far(tmp_path, "a", "", {}, monkeypatch)
    service.deployment.is_local = True
    found = []
    for free, limits in ((110, ()), (gib, ("heat",))):
        machine = Box(memory={"MemAvailable": free << 30}, gpus=(BoxGpu("GB10", limits=limits),))
        monkeypatch.setattr("envgen.engine.box.look", lambda machine=machine: machine)
        found.append(history.found(service))
    history.note(tmp_path, "p", "s", GOOD | found[0], 5, {})
    (noted,) = history.starts(tmp_path, "p", "s")
    changed = history.since(noted, GOOD | found[1]).partition(" that worked: ")[2]
    assert changed == f"{text}clocks limited by nothing → limited by heat; the same: image, lock, command"
