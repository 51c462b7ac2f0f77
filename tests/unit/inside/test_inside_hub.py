"""What of a model is in a Hugging Face cache: whole, partial, damaged or absent, by the files alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(size: int) -> bytes:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"x" * size


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A whole model of two shards, laid out as huggingface_hub does, without its links."""
    folder = tmp_path / "hub/models--acme--tiny"
    found = folder / "snapshots" / COMMIT
    found.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    (found / "config.json").write_text("{}")
    (found / hub.INDEXES[0]).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    for name in SHARDS:
        (found / name).write_bytes(shard(100))
    return found


def check(home: Path, commit: str = "", revision: str = "main") -> tuple[str, list[str]]:
    found = hub.answer(
        {"verb": "check", "home": str(home), "repo": "acme/tiny", "revision": revision, "commit": commit}
    )
    return found["state"], found["problems"]


def test_a_whole_model(tmp_path: Path, snapshot: Path) -> None:
    assert check(tmp_path) == ("whole", [])
    assert check(tmp_path, COMMIT) == ("whole", [])
    assert check(tmp_path, revision=COMMIT) == ("whole", [])
    (model,) = hub.answer({"verb": "list", "home": str(tmp_path)})["models"]
    assert (model["repo"], model["refs"]) == ("acme/tiny", {"main": COMMIT})


def test_none(tmp_path: Path) -> None:
    assert check(tmp_path) == ("absent", [])
    assert hub.answer({"verb": "list", "home": str(tmp_path)}) == {"models": []}


def test_a_missing_shard(tmp_path: Path, snapshot: Path) -> None:
    (snapshot / SHARDS[1]).unlink()
    assert check(tmp_path) == ("partial", [f"{SHARDS[1]} is missing"])
    (snapshot / SHARDS[1]).symlink_to("../../blobs/gone")
    assert check(tmp_path) == ("partial", [f"{SHARDS[1]} is missing"])


def test_a_shard_that_was_cut_short(tmp_path: Path, snapshot: Path) -> None:
    data = (snapshot / SHARDS[0]).read_bytes()
    (snapshot / SHARDS[0]).write_bytes(data[:-7])
    assert check(tmp_path) == ("damaged", [f"{SHARDS[0]} has {len(data) - 7} bytes of {len(data)}"])
    (snapshot / SHARDS[0]).write_bytes(b"<html>not found</html>")
    assert check(tmp_path) == ("damaged", [f"{SHARDS[0]} is not a safetensors file"])


def test_a_download_that_was_not_finished(tmp_path: Path, snapshot: Path) -> None:
    (snapshot / SHARDS[0]).unlink()
    (snapshot.parents[1] / "blobs/abc.incomplete").write_bytes(b"x")
    assert check(tmp_path) == ("partial", [f"{SHARDS[0]} is missing"])


def test_another_commit_than_in_the_lock(tmp_path: Path, snapshot: Path) -> None:
    assert check(tmp_path, OTHER) == ("absent", [])
    other = snapshot.parent / OTHER
    snapshot.rename(other)
    state, problems = check(tmp_path, OTHER)
    assert state == "damaged" and problems == [f"main is {COMMIT[:12]} here, and {OTHER[:12]} in the lock"]


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": []}', "{", '{"weight_map": 1}'])
def test_an_index_that_is_none(tmp_path: Path, snapshot: Path, text: str) -> None:
    (snapshot / hub.INDEXES[0]).write_text(text)
    assert check(tmp_path) == ("damaged", [f"{hub.INDEXES[0]} can't be read"])


@given(st.binary(max_size=200))
def test_any_bytes_as_a_shard(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(data)
    assert hub.size_of_shard(str(path)) >= -1
    for offsets in ("1", '[0, "x"]', "[0]", "[0, 1e999]", "[0, null]"):
        header = b'{"w": {"data_offsets": %s}}' % offsets.encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        assert hub.size_of_shard(str(path)) == -1


def test_links_and_escapes_lead_nowhere(tmp_path: Path, snapshot: Path) -> None:
    assert hub.commit_of(str(snapshot.parents[1]), "../../../../etc/passwd") == ""
    (snapshot / "loop").symlink_to(snapshot)
    assert check(tmp_path)[0] == "whole"
