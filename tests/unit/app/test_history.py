"""Starts that worked, and what has changed since."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.app import history

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
         "driver 580.142 → 590.44, kernel 6.17.0 → 7.0.1; image, lock and command are the same"),
        ({"lock": "cc", "image": "dd"}, "image aa11 → dd, lock bb22 → cc; command is the same"),
        ({"GPU 0": "H200", "command": "x" * 90},
         f"command serve m → {'x' * 59}…, GPU 0 GB10 → H200; image and lock are the same"),
    ],
)  # fmt: skip
def test_the_most_suspicious_change_comes_first(tmp_path: Path, now: dict[str, str], text: str) -> None:
    assert history.note(tmp_path, "prod", "serve", GOOD, 100, {"weights": 20.0}) == []
    noted = history.starts(tmp_path, "prod", "serve")
    assert history.since(noted, GOOD | now).partition(" that worked: ")[2] == text
    assert history.since([], GOOD) == "" and noted[0].phases == {"weights": 20.0}


def test_what_only_one_side_knows_is_no_change() -> None:
    assert history.changes({"driver": "1", "a": "x"}, {"firmware": "2", "a": "x"}) == []
    assert history.changes({"free memory": "9 GiB"}, {"free memory": "8 GiB"}) == []


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


def test_a_machine_says_what_it_has(tmp_path: Path) -> None:
    for path, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build\n",
        "sys/class/dmi/id/bios_version": "5.36_0ACUM018\n",
        "etc/dgx-release": 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\n',
        "proc/meminfo": "MemAvailable:   104857600 kB\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    facts = history.machine_facts(tmp_path)
    assert facts["driver"] == "580.142" and facts["firmware"] == "5.36_0ACUM018"
    assert facts["DGX OS"] == "7.2.3" and facts["free memory"] == "100 GiB"


def test_packages_are_those_of_the_last_start_and_the_rest_of_many_is_a_number(tmp_path: Path) -> None:
    many = {f"package p{number:02}": "1" for number in range(12)}
    for _ in range(2):
        history.note(tmp_path, "p", "s", GOOD | many, 5, {})
    first, last = history.starts(tmp_path, "p", "s")
    assert first.facts == GOOD and last.facts == GOOD | many
    text = history.since([last], GOOD | dict.fromkeys(many, "2"))
    assert "package p00 1 → 2" in text and "package p07 1 → 2 and 4 more; image" in text


def test_machines_are_compared_by_their_last_starts_but_for_their_commands(tmp_path: Path) -> None:
    def rank(node: str, **facts: str) -> Any:
        history.note(tmp_path, "p", f"s.{node}", GOOD | facts, 5, {})
        deployment = SimpleNamespace(root=tmp_path, node=node, named=lambda text: f"{node}: {text}")
        return SimpleNamespace(deployment=deployment, profile=SimpleNamespace(name="p"), name="s")

    ranks = [rank("a"), rank("b", command="--rank 1"), rank("c", driver="590")]
    assert history.between(ranks) == ["c: differs: driver 580.142 → 590"]
