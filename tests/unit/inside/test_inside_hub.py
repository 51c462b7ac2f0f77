"""What of a model is in a Hugging Face cache: whole, partial, damaged or absent, by the files alone."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.inside import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(size: int, name: str = "a") -> bytes:
    header = json.dumps(
        {"__metadata__": {}, name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
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
    (found / "config.json").write_text('{"model_type": "llama"}')
    (found / "tokenizer.json").write_text("{}")
    (found / hub.INDEXES[0]).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    for name, tensor in zip(SHARDS, "ab", strict=True):
        (found / name).write_bytes(shard(100, tensor))
    return found


def check(home: Path, commit: str = "", revision: str = "main", **more: bool) -> tuple[str, list[str]]:
    request = {"verb": "check", "home": str(home), "repo": "acme/tiny", "revision": revision, "commit": commit}
    found = hub.answer({**request, "reads": True, **more})
    return found["state"], found["problems"]


def test_a_whole_model(tmp_path: Path, snapshot: Path) -> None:
    assert check(tmp_path) == ("whole", [])
    assert check(tmp_path, COMMIT) == ("whole", [])
    assert check(tmp_path, revision=COMMIT) == ("whole", [])


def test_none(tmp_path: Path) -> None:
    assert check(tmp_path) == ("absent", [])


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


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": []}', "{", '{"weight_map": 1}', '{"weight_map": {}}'])
def test_an_index_that_is_none(tmp_path: Path, snapshot: Path, text: str) -> None:
    (snapshot / hub.INDEXES[0]).write_text(text)
    (snapshot / SHARDS[0]).unlink()  # nothing else says that there was one
    assert check(tmp_path) == ("damaged", [f"{hub.INDEXES[0]} names no weights, or can't be read"])


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no"])
def test_a_config_that_says_nothing(tmp_path: Path, snapshot: Path, text: str) -> None:
    (snapshot / "config.json").write_text(text)
    assert check(tmp_path) == ("damaged", ["config.json is empty, or can't be read"])


def test_a_model_without_its_vocabulary(tmp_path: Path, snapshot: Path) -> None:
    (snapshot / "tokenizer.json").rename(snapshot / "tokenizer_config.json")
    assert check(tmp_path) == ("partial", ["the tokenizer's vocabulary is missing"])
    assert check(tmp_path, reads=False) == ("whole", [])  # a draft
    for name in ("tokenizer.model", "tekken.json", "vocab.txt", "qwen.tiktoken", "original/tokenizer.model"):
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).touch()
        assert check(tmp_path) == ("whole", []), name
        (snapshot / name).unlink()


def test_a_shard_that_is_a_copy_of_another(tmp_path: Path, snapshot: Path) -> None:
    (snapshot / SHARDS[1]).write_bytes((snapshot / SHARDS[0]).read_bytes())
    assert check(tmp_path) == ("damaged", [f"{SHARDS[1]} has other weights than the index says"])


def test_the_hub_s_hashes(tmp_path: Path, snapshot: Path) -> None:
    """A blob is called after them: SHA-256 of large files, git's of others."""
    blobs = snapshot.parents[1] / "blobs"
    for name in ("config.json", SHARDS[0]):
        data = (snapshot / name).read_bytes()
        sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        blob = blobs / (sha1 if name == "config.json" else hashlib.sha256(data).hexdigest())
        (snapshot / name).rename(blob)
        (snapshot / name).symlink_to(blob)
    assert check(tmp_path, deep=True) == ("whole", [])
    (snapshot / SHARDS[0]).write_bytes((snapshot / SHARDS[0]).read_bytes()[:-1] + b"y")
    (snapshot / "config.json").write_text('{"model_type": "other"}')
    assert check(tmp_path) == ("whole", [])  # 60 GB are read only where that is asked for
    problems = [f"{name} has other bytes than the hub's" for name in ("config.json", SHARDS[0])]
    assert check(tmp_path, deep=True) == ("damaged", problems)


@pytest.mark.parametrize("name", [SHARDS[0], "config.json", hub.INDEXES[0]])
def test_a_pipe_in_the_cache_ends_nothing(tmp_path: Path, snapshot: Path, name: str) -> None:
    """A container can make one there; whoever opens it would wait for a writer."""
    (snapshot / name).unlink()
    os.mkfifo(snapshot / name)
    assert check(tmp_path)[0] == "damaged"
    (snapshot.parents[1] / "refs/main").unlink()
    os.mkfifo(snapshot.parents[1] / "refs/main")
    assert check(tmp_path) == ("absent", [])


@given(st.binary(max_size=200))
def test_any_bytes_as_a_shard(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(data)
    assert hub.shard_of(str(path))[0] >= -1
    for offsets in ("1", '[0, "x"]', "[0]", "[0, 1e999]", "[0, null]"):
        header = b'{"w": {"data_offsets": %s}}' % offsets.encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        assert hub.shard_of(str(path)) == (-1, set())


def test_links_and_escapes_lead_nowhere(tmp_path: Path, snapshot: Path) -> None:
    assert hub.commit_of(str(snapshot.parents[1]), "../../../../etc/passwd") == ""
    (snapshot / "loop").symlink_to(snapshot)
    assert check(tmp_path)[0] == "whole"
