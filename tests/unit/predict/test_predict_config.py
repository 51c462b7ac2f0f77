"""A model's own files, as the program in the container reads them before it asks the release: they are a stranger's."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from envgen.inside.predict import config
from envgen.inside.predict.release import NotAskable


def placed(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"unasked": []}
    config.find_config(Namespace(model=str(folder)), {"models": {}}, found, str(folder))
    model: dict[str, Any] = found["model"]
    return model


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{" + " " * (100 << 20) + "}", "has 100 MiB: no model has such a config.json"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ('{"a": ', "cannot be read: Expecting value"),
        ("[]", "cannot be read: it is not a mapping"),
    ],
    ids=["large", "deep", "broken", "list"],
)
def test_a_config_that_is_none_is_not_handed_to_the_release(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(NotAskable, match=said):
        placed(tmp_path)


def test_a_plain_one_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert placed(tmp_path)["from"] == "folder"


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ('{"metadata": {"total_size": 12}}', 12),
        ('{"metadata": {"total_size": "x"}}', None),
        ('{"metadata": []}', None),
        ("{}", None),
        ("[" * 100_000, None),
        ('{"metadata": {"total_size": -1}}', None),
    ],
)
def test_an_index_that_is_broken_leaves_the_weights_unknown_and_nothing_else(
    tmp_path: Path, text: str, total: int | None
) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert config.weights_of(str(tmp_path)) == total
