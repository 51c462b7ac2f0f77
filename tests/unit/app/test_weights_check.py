"""`envgen model check`, on folders as the Hugging Face cache has them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from envgen.inside.hub import check

COMMIT = "c" * 40


def shard() -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"data"


def checked(home: Path, *names: str) -> tuple[str, list[str]]:
    snapshot = home / "hub/models--acme--tiny/snapshots" / COMMIT
    for name in ("config.json", *names):
        file = snapshot / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(shard() if name.endswith(".safetensors") else b'{"a": 1}')
    found = check(str(home), "acme/tiny", COMMIT, "")
    return found["state"], found["problems"]


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
    state, problems = checked(tmp_path, *names)
    assert (state, problems) == ("partial" if missing else "whole", [f"{name} is missing" for name in missing])


def test_the_index_decides_where_there_is_one(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--acme--tiny/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert checked(tmp_path, "model.safetensors", "old-00001-of-00002.bin") == ("whole", [])


def test_an_absurd_count_is_a_short_answer(tmp_path: Path) -> None:
    state, problems = checked(tmp_path, "model-00001-of-99999.safetensors")
    assert state == "partial" and len(problems) == 50
