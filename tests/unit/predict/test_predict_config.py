"""A model's own files, as the program in the container reads them before it asks the release: they are a stranger's."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envgen.inside.predict import config, experts
from envgen.inside.predict.release import NotAskable


def placed(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"unasked": []}
    config.find_config(Namespace(model=str(folder)), {"models": {}}, found, str(folder))
    model: dict[str, Any] = found["model"]
    return model


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
        ('{"metadata": {"total_size": 1e999}}', None),
    ],
)
def test_an_index_that_is_broken_leaves_the_weights_unknown_and_nothing_else(
    tmp_path: Path, text: str, total: int | None
) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert config.weights_of(str(tmp_path)) == total


def test_a_recipe_s_draft_is_asked_about_by_envgen_s_own_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Namespace(try_to_load_from_cache=lambda *_, **__: None)
    monkeypatch.setattr("importlib.import_module", lambda _: hub)
    facts = {"org/draft": {"config": {"model_type": "qwen3", "head_dim": 128}, "weights": 12}}
    asked = {"method": "dflash", "model": "org/draft", "revision": "a" * 40, "num_speculative_tokens": 8}
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    args = Namespace(model=str(tmp_path), speculative_config=dict(asked))
    found: dict[str, Any] = {"unasked": []}
    config.find_config(args, {"models": facts}, found, str(tmp_path))
    place = Path(args.speculative_config["model"])
    assert place == tmp_path / "draft" and found["unasked"] == []
    assert args.speculative_config == {"method": "dflash", "model": str(place), "num_speculative_tokens": 8}
    size = config.size_of_draft(found["model"])
    assert size == {"draft_config": facts["org/draft"]["config"], "draft_weights": 12}
    args = Namespace(model=str(tmp_path), speculative_config=dict(asked))
    config.find_config(args, {"models": {}}, found, str(tmp_path))
    assert args.speculative_config is None and "of org/draft is neither in the" in found["unasked"][0]["why"]


def test_a_draft_whose_folder_is_not_there_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("not the name of a repository")  # as huggingface_hub of a path

    monkeypatch.setattr("importlib.import_module", lambda _: Namespace(try_to_load_from_cache=refuse))
    (tmp_path / "config.json").write_text("{}")
    args = Namespace(model=str(tmp_path), speculative_config={"model": "/not/there", "num_speculative_tokens": 2})
    found: dict[str, Any] = {"unasked": []}
    config.find_config(args, {"models": {}}, found, str(tmp_path))
    assert args.speculative_config is None and "/not/there" in found["unasked"][0]["why"]


def test_a_draft_in_a_folder_counts(tmp_path: Path) -> None:
    for name in ("model", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"head_dim": 64}')
    asked = {"method": "eagle3", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3}
    args, found = Namespace(model=str(tmp_path / "model"), speculative_config=asked), dict[str, Any](unasked=[])
    config.find_config(args, {"models": {}}, found, str(tmp_path))
    assert args.speculative_config == asked and found["model"]["drafted"] == 3
    assert config.size_of_draft(found["model"]) == {"draft_config": {"head_dim": 64}, "draft_weights": None}


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is not a file"),
    "device": (lambda place: place.symlink_to("/dev/zero"), "is not a file"),
    "loop": (lambda place: place.symlink_to(place.name), "is not a file"),
    "absent": (lambda place: None, "is not a file"),
    "large": (lambda place: put_size(place, 100 << 20), "has 100 MiB: no model has such a config.json"),
    "deep": (lambda place: place.write_text("[" * 100_000), "nested too deep"),
    "broken": (lambda place: place.write_text('{"a": '), "cannot be read: Expecting value"),
    "list": (lambda place: place.write_text("[]"), "cannot be read: it is not a mapping"),
}


def put_size(place: Path, size: int) -> None:
    with place.open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("kind", ODD)
def test_a_config_that_is_none_is_not_handed_to_the_release(tmp_path: Path, kind: str) -> None:
    """A model's ends all questions, a draft's those about the draft."""
    make, said = ODD[kind]
    (tmp_path / "draft").mkdir()
    make(tmp_path / "draft/config.json")
    with pytest.raises(NotAskable, match=said):
        placed(tmp_path / "draft")
    (tmp_path / "config.json").write_text("{}")
    args = Namespace(model=str(tmp_path), speculative_config={"method": "eagle3", "model": str(tmp_path / "draft")})
    found = dict[str, Any](unasked=[])
    config.find_config(args, {"models": {}}, found, str(tmp_path))
    assert args.speculative_config is None and config.size_of_draft(found["model"]) == {}
    assert found["unasked"][0]["why"].startswith(f"the draft model: {tmp_path}/draft/config.json ")


@pytest.mark.parametrize(
    ("mode", "asked", "drafted", "states"),
    [("none", None, None, 1), ("none", 3, None, 4), ("align", 3, None, 5), ("align", None, 3, 5), ("all", 3, 3, None)],
)
def test_the_states_that_a_sequence_keeps(
    monkeypatch: pytest.MonkeyPatch, mode: str, asked: int | None, drafted: int | None, states: int | None
) -> None:
    monkeypatch.setattr(config, "checkpoints", lambda _: False)
    speculation = Namespace(num_speculative_tokens=asked) if asked else None
    found = Namespace(cache_config=Namespace(mamba_cache_mode=mode), speculative_config=speculation, model_config=None)
    assert config.states_of(found, drafted) == states


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        (None, experts.EXPERTS),
        ({"model.layers.0.self_attn.q_proj": {}}, experts.EXPERTS),
        ({"mtp.layers.0.mlp.experts": {}, "model.language_model.layers.5.mlp.experts": {}},
         "model.language_model.layers.5.mlp.experts"),
        ({"model.layers.2.mlp.experts.0.up_proj": {}}, "model.layers.2.mlp.experts"),
    ],
)  # fmt: skip
def test_experts_are_asked_about_by_a_layer_that_the_quantization_lists(listed: Any, name: str) -> None:
    assert experts.name_of(Namespace(quantized_layers=listed) if listed else None) == name
