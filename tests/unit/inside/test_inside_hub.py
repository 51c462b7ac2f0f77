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


CUT = shard(100)[:-7]
DAMAGE = [  # file, what is there instead (None: nothing; a text: a link to it), state, problem
    (SHARDS[1], None, "partial", f"{SHARDS[1]} is missing"),
    (SHARDS[1], "../../blobs/gone", "partial", f"{SHARDS[1]} is missing"),
    (SHARDS[0], CUT, "damaged", f"{SHARDS[0]} has {len(CUT)} bytes of {len(CUT) + 7}"),
    (SHARDS[0], b"<html>not found</html>", "damaged", f"{SHARDS[0]} is not a safetensors file"),
    (SHARDS[1], shard(100), "damaged", f"{SHARDS[1]} has other weights than the index says"),
    ("tokenizer.json", b"", "damaged", "tokenizer.json is empty, or cut off"),
    ("tokenizer.json", b"garbage", "damaged", "tokenizer.json is empty, or cut off"),
    ("tokenizer.json", b'{"model": {"voc', "damaged", "tokenizer.json is empty, or cut off"),
    ("tokenizer.json", "/etc/hostname", "damaged", "tokenizer.json is a link that leads out of the cache"),
    *(("config.json", text, "damaged", "config.json is empty, or can't be read")
      for text in (b"", b"{}", b"[1]", b"no")),
    *((hub.INDEXES[0], text, "damaged", f"{hub.INDEXES[0]} names no weights, or can't be read")
      for text in (b"", b"[]", b'{"weight_map": []}', b"{", b'{"weight_map": 1}', b'{"weight_map": {}}')),
]  # fmt: skip


@pytest.mark.parametrize(("name", "instead", "state", "problem"), DAMAGE)
def test_what_is_damaged(
    tmp_path: Path, snapshot: Path, name: str, instead: bytes | str | None, state: str, problem: str
) -> None:
    (snapshot / name).unlink()
    if isinstance(instead, str):
        (snapshot / name).symlink_to(instead)
    elif instead is not None:
        (snapshot / name).write_bytes(instead)
    if name == hub.INDEXES[0]:
        (snapshot / SHARDS[0]).unlink()  # nothing else says that there was one
    assert check(tmp_path) == (state, [problem])


def tensor(**entry: object) -> bytes:
    header = json.dumps({"w": entry} if entry else {}).encode()
    return struct.pack("<Q", len(header)) + header + b"x" * 16


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("model.safetensors", tensor(), "model.safetensors holds no weights"),
        ("model.safetensors", tensor(dtype="F32", shape=[4], data_offsets=[0, 16]), ""),
        ("model.safetensors", tensor(dtype="F4", shape=[8, 4], data_offsets=[0, 16]), ""),
        ("model.safetensors", tensor(dtype="NEW", shape=[8, 4], data_offsets=[0, 16]), ""),
        ("a.safetensors", tensor(dtype="F32", shape=[5], data_offsets=[0, 16]), "a.safetensors is not a safetensors file"),
        ("pytorch_model.bin", b"", "pytorch_model.bin is empty, or cut off"),
        ("model.gguf", b"", "model.gguf is empty, or cut off"),
        ("pytorch_model.bin", None, "pytorch_model.bin is not a file"),
        ("adapter_model.bin", b"x", "there are no weights"),
        ("training_args.bin", b"x", "there are no weights"),
    ],
)  # fmt: skip
def test_the_only_weights(tmp_path: Path, snapshot: Path, name: str, data: bytes | None, problem: str) -> None:
    for old in (*SHARDS, hub.INDEXES[0]):
        (snapshot / old).unlink()
    (snapshot / name).write_bytes(data) if data is not None else os.mkfifo(snapshot / name)
    assert check(tmp_path) == (("damaged", [problem]) if problem else ("whole", []))


def test_a_download_that_was_not_finished(tmp_path: Path, snapshot: Path) -> None:
    (snapshot.parents[1] / "blobs/abc.incomplete").write_bytes(b"x")
    (snapshot / SHARDS[0]).write_bytes(CUT)
    assert check(tmp_path)[0] == "partial"


def test_another_commit_than_in_the_lock(tmp_path: Path, snapshot: Path) -> None:
    assert check(tmp_path, OTHER) == ("absent", [])
    other = snapshot.parent / OTHER
    snapshot.rename(other)
    state, problems = check(tmp_path, OTHER)
    assert state == "damaged" and problems == [f"main is {COMMIT[:12]} here, and {OTHER[:12]} in the lock"]


def test_a_model_without_its_vocabulary(tmp_path: Path, snapshot: Path) -> None:
    (snapshot / "tokenizer.json").rename(snapshot / "tokenizer_config.json")
    assert check(tmp_path) == ("partial", ["the tokenizer's vocabulary is missing"])
    assert check(tmp_path, reads=False) == ("whole", [])  # a draft
    for name in ("tokenizer.model", "tekken.json", "vocab.txt", "qwen.tiktoken", "original/tokenizer.model"):
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).write_text("{}")
        assert check(tmp_path) == ("whole", []), name
        (snapshot / name).unlink()


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


def made(home: Path, *names: str) -> tuple[str, list[str]]:
    """The check of a model of these files, besides its configuration."""
    snapshot = home / "hub/models--acme--tiny/snapshots" / COMMIT
    for name in ("config.json", *names):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(shard(4) if name.endswith(".safetensors") else b'{"a": 1}')
    return check(home, revision=COMMIT, reads=False)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("model.safetensors",), []),
        (("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), []),
        (("model-00001-of-00002.safetensors",), ["model-00002-of-00002.safetensors"]),
        (("q8/m-00002-of-00003.gguf",), ["q8/m-00001-of-00003.gguf", "q8/m-00003-of-00003.gguf"]),
        (("pytorch_model-00001-of-00002.bin",), ["pytorch_model-00002-of-00002.bin"]),
        (("model-00001-of-00000.safetensors",), []),
        (("a-00001-of-00001.safetensors", "b-00002-of-00002.safetensors"), ["b-00001-of-00002.safetensors"]),
    ],
)
def test_shards_count_themselves_without_an_index(tmp_path: Path, names: tuple[str, ...], missing: list[str]) -> None:
    state, problems = made(tmp_path, *names)
    assert (state, problems) == ("partial" if missing else "whole", [f"{name} is missing" for name in missing])


def test_the_index_decides_where_there_is_one(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--acme--tiny/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert made(tmp_path, "model.safetensors", "old-00001-of-00002.bin") == ("whole", [])


def test_an_absurd_count_is_a_short_answer(tmp_path: Path) -> None:
    state, problems = made(tmp_path, "model-00001-of-99999.safetensors")
    assert state == "partial" and len(problems) == 50
