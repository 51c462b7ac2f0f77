"""Remembered trees: the same tree for the same text, and none for anything else."""

from __future__ import annotations

import binascii
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.profile import yamlfile
from envgen.profile.load import load_project, select
from envgen.profile.tree import Node
from envgen.profile.trees import Trees

TEXT = """\
version: 1
name: demo
defaults: &x
  base: {image: "base:1"}
  cuda: {arch_list: "12.1a"}
profiles:
  dev:
    mode: development
    description: 'a quoted "text" with ü and a
      second line'
    services:
      dev: {command: [sleep, infinity]}
"""


def flat(node: Node) -> Any:
    items = {name: flat(child) for name, child in node.items.items()}
    return node.kind, node.line, node.column, node.key_line, node.key_column, node.text, items, node.source.text


def test_read_again_it_is_the_same_tree_and_yaml_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, trees = tmp_path / "envgen.yaml", Trees(tmp_path / "trees")
    file.write_text(TEXT)
    first = yamlfile.read(file, "envgen.yaml", trees=trees)
    whole = select(load_project(file=file).project, None)
    monkeypatch.setitem(sys.modules, "envgen.profile.yamlparse", None)  # importing it raises now
    again = yamlfile.read(file, "envgen.yaml", trees=trees)
    assert flat(again) == flat(first)
    assert select(load_project(file=file, trees=trees).project, None) == whole
    with pytest.raises(ImportError):
        yamlfile.read(file, "envgen.yaml")


def test_another_text_is_read_afresh(tmp_path: Path) -> None:
    """Whatever its times: the text itself is compared."""
    file, trees = tmp_path / "envgen.yaml", Trees(tmp_path / "trees")
    file.write_text(TEXT)
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    yamlfile.read(file, "envgen.yaml", trees=trees)
    file.write_text(TEXT.replace("12.1a", "12.0a"))
    os.utime(file, ns=times)
    node = yamlfile.read(file, "envgen.yaml", trees=trees)
    assert node.items["defaults"].items["cuda"].items["arch_list"].text == "12.0a"


def test_errors_are_never_remembered(tmp_path: Path) -> None:
    from envgen.errors import ProjectError

    file, trees = tmp_path / "envgen.yaml", Trees(tmp_path / "trees")
    file.write_text("a: [")
    for _ in range(2):
        with pytest.raises(ProjectError):
            yamlfile.read(file, "envgen.yaml", trees=trees)
    assert not (tmp_path / "trees").exists()


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_what_others_could_have_written_counts_as_none(tmp_path: Path, mode: int) -> None:
    file, trees = tmp_path / "envgen.yaml", Trees(tmp_path / "trees")
    file.write_text(TEXT)
    node = yamlfile.read(file, "envgen.yaml", trees=trees)
    (record,) = (tmp_path / "trees").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    assert trees.load(file, node.source) is not None
    record.chmod(mode)
    assert trees.load(file, node.source) is None


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_none_or_harmless(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, cut: bool) -> None:
    folder = tmp_path_factory.mktemp("trees")
    file, trees = folder / "envgen.yaml", Trees(folder / "trees")
    file.write_text(TEXT)
    node = yamlfile.read(file, "envgen.yaml", trees=trees)
    (record,) = (folder / "trees").iterdir()
    data = bytearray(record.read_bytes())
    place %= len(data)
    record.write_bytes(bytes(data[:place] if cut else data[:place] + bytes([byte]) + data[place + 1 :]))
    found = trees.load(file, node.source)
    assert found is None or flat(found) == flat(node)


@pytest.mark.parametrize(
    "tree", [None, [], ["odd", 1, 1, 0, 0, "", {}], ["map", "x", 1, 0, 0, "", {}], ["map", 1, 1, 0, 0, 5, {}]]
)
def test_other_shapes_are_none(tmp_path: Path, tree: Any) -> None:
    file, trees = tmp_path / "envgen.yaml", Trees(tmp_path / "trees")
    file.write_text(TEXT)
    node = yamlfile.read(file, "envgen.yaml", trees=trees)
    (record,) = (tmp_path / "trees").iterdir()
    body = json.dumps({**json.loads(record.read_bytes().partition(b"\n")[2]), "tree": tree}).encode()
    record.write_bytes(b"%08x\n" % binascii.crc32(body) + body)
    assert trees.load(file, node.source) is None


def test_only_the_last_ones_are_kept_and_nothing_must_be_writable(tmp_path: Path) -> None:
    trees = Trees(tmp_path / "trees")
    for number in range(70):
        file = tmp_path / f"{number}.yaml"
        file.write_text(TEXT)
        yamlfile.read(file, "envgen.yaml", trees=trees)
    assert len(list((tmp_path / "trees").iterdir())) == 64
    (tmp_path / "file").write_text("")
    assert yamlfile.read(file, "envgen.yaml", trees=Trees(tmp_path / "file")) is not None
