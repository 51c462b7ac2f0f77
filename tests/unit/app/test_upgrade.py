"""`envgen upgrade`: the edit of the file, and the lines of a log that a pattern can find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from envgen.app.predict import Place as PredictPlace
from envgen.app.upgrade import Edit, Plan, Use, _ask_predict, _log, edited, samples
from envgen.engine.values import ExecResult
from envgen.errors import RefusedError, UsageError
from envgen.profile.load import load_project
from envgen.profile.tree import Node, Source, parse, scalar

TOP = Path(__file__).parents[3]
ANSWERS = Path(__file__).parents[1] / "predict" / "answers"


def value(text: str, *keys: str) -> Node:
    node, problems = parse(Source("envgen.yaml", "project", text))
    assert node is not None and not problems
    for key in keys:
        node = node.items[key]
    return node


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: {b: x==1.0} # 1.0\n", "a: {b: x==2.0} # 1.0\n"),
        ("# 1.0\na:\n  b: 'v1.0'   # é\n", "# 1.0\na:\n  b: 'v2.0'   # é\n"),
        ('a: {"b": "1.0"}', 'a: {"b": "2.0"}'),
        ("x: &v x==1.0\na: {b: *v}\n", "x: &v x==2.0\na: {b: *v}\n"),
        ("a:\r\n  b: v1.0\r\n", "a:\r\n  b: v2.0\r\n"),
        ("é: 🐍\na: {c: 🐍, b: v1.0}\n", "é: 🐍\na: {c: 🐍, b: v2.0}\n"),
    ],
)
def test_only_the_release_in_the_value_changes(before: str, after: str) -> None:
    edit = Edit("sources.x.origin", value(before, "a", "b"), "1.0", "2.0")
    assert edited(before, [edit, edit]) == after


def test_a_value_that_holds_the_release_twice_or_comes_from_elsewhere_is_refused_with_its_place() -> None:
    text = "a: {b: 1.0+1.0}\n"
    with pytest.raises(RefusedError, match="by envgen") as caught:
        edited(text, [Edit("k", value(text, "a", "b"), "1.0", "2.0")])
    assert str(caught.value).startswith("envgen.yaml:1:8: k: ")
    foreign = scalar("x==1.0", Source("ENVGEN_X", "environment"))
    with pytest.raises(RefusedError, match="this decides the release"):
        edited(text, [Edit("k", foreign, "1.0", "2.0")])


def test_a_link_stays_one_and_a_file_that_was_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "envgen.yaml"
    real.write_bytes(b"a: 1\n")
    link.symlink_to(real)
    found = Plan(cast(Any, None), {}, "", file=link, before=b"a: 1\n", after=b"a: 2\n")
    found.write()
    assert link.is_symlink() and real.read_bytes() == b"a: 2\n"
    with pytest.raises(RefusedError, match="changed meanwhile"):
        found.write()


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> Plan:
    """A plan after a Python was asked that answers as vLLM 0.32.0 did."""
    answer = json.loads((ANSWERS / "0.32.0-two-gpus.json").read_text(encoding="utf-8"))

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        return ExecResult(0, f"{json.loads(stdin)['mark']} {json.dumps({'answer': answer})}\n".encode(), b"")

    monkeypatch.setattr("envgen.app.upgrade.place_on_host", lambda *_: PredictPlace(execute, "python", "there"))
    profile = load_project(file=TOP / "envgen.yaml", environ={}, local=False).project.profiles["prod"]
    (tmp_path / "python").touch()
    found = Plan(profile, {"vllm": ("0.14.0", then)}, then)
    _ask_predict(found, profile, tmp_path / "python")
    return found


def test_what_predict_says_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(tmp_path, monkeypatch, "0.32.0")
    assert [one.service for one in found.predictions] == ["serve"]
    assert [(one.message, one.stops) for one in found.findings] == [("serve: contradicts, says vLLM 0.32.0", True)]
    with pytest.raises(UsageError, match=r"has vLLM 0\.32\.0, not 0\.33\.0"):
        asked(tmp_path, monkeypatch, "0.33.0")


def test_every_release_of_the_shipped_project_can_be_edited() -> None:
    file = TOP / "envgen.yaml"
    loaded = load_project(file=file, environ={}, local=False)
    for tree in loaded.trees.values():
        for source in tree.items["sources"].items.values():
            for node in source.items["origin"].items.values():
                assert edited(file.read_text(), [Edit("k", node, node.text, "NEW")]).count("NEW") == 1


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"Using (AttentionBackendEnum\.)?TRITON_ATTN( attention)? backend", ["Using TRITON_ATTN backend"]),
        (r"Loading weights took ([\d.]+) seconds", ["Loading weights took "]),
        (r"\[MXFP4\] a|(one|two) b$", ["[MXFP4] a", "one b"]),
        (r"config\(method='x'", ["config(method='x'"]),
    ],
)
def test_what_a_pattern_certainly_wants(pattern: str, found: list[str]) -> None:
    assert samples(pattern) == found


def test_a_pattern_is_named_only_where_no_alternative_is_left() -> None:
    used = [
        Use("pattern", one, None) for one in ("Using Marlin backend", "Using Marlin backend|Using '.*' MoE backend")
    ]
    found = _log("Using Marlin backend", "Using '%s' MoE backend\nUsing %s backend", "old", "new", used)
    assert [one.message for one in found if "explain" not in one.message] == [
        "'Using Marlin backend' finds a line of old, and nothing that new logs"
    ]
