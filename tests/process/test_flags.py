"""Flags arrive as they are written: what a release's own parser reads from the rendered words is the value in `args`.

Daily the release that is shipped is asked; with ENVGEN_RELEASES=all two older ones, too.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_project_files import HEAD
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from releases import TOP, Warm, environment

from envgen.profile.flags import SHORT, VARIABLE
from envgen.profile.load import load_project

RELEASES = ("0.33.0", "0.30.0", "0.14.0") if os.environ.get("ENVGEN_RELEASES") == "all" else ("0.33.0",)
PROGRAM = TOP / "tests" / "support" / "parse_flags.py"
SECRET = {"api-key", "hf-token"}  # refused in a profile
Parse = Callable[[dict[str, Any]], dict[str, Any]]

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), max_size=12
).filter(lambda text: not VARIABLE.search(text))
NUMBERS = {"int": st.integers(-5, 10**9), "float": st.floats(-1e6, 1e6).map(lambda one: one + 0.0)}
KEYS = st.text(st.sampled_from("abcdefgh_"), min_size=1, max_size=6)
JSON = st.recursive(
    st.one_of(st.booleans(), *NUMBERS.values(), WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
KINDS: dict[str, Any] = {
    "bool": st.booleans(),
    "text": WORDS,
    **NUMBERS,
    "json": st.dictionaries(KEYS, JSON, max_size=3),
}


@pytest.fixture(scope="module", params=RELEASES)
def parse(request: pytest.FixtureRequest, hot: Warm) -> Iterator[Parse]:
    text = f"TOP = {str(TOP)!r}\n" + PROGRAM.read_text(encoding="utf-8").replace(
        "from __future__ import annotations", ""
    )
    argv = [str(hot(environment(request.param))), "-c", text]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        asked, answers = program.stdin, program.stdout
        asked.write(f"{TOP}\n")

        def ask(one: dict[str, Any]) -> dict[str, Any]:
            asked.write(json.dumps(one) + "\n")
            asked.flush()
            line = next(line for line in answers if line.startswith("=> "))
            answer: dict[str, Any] = json.loads(line[3:])
            return answer

        yield ask
        asked.close()


def values_of(flag: dict[str, Any], name: str) -> st.SearchStrategy[Any]:
    kind = flag["kind"]
    if flag["choices"]:
        values: st.SearchStrategy[Any] = st.sampled_from(flag["choices"]).map(
            lambda one: int(one) if kind == "int" else one
        )
    elif kind == "either":
        values = WORDS.filter(lambda text: not text.strip().startswith("{")) | KINDS["json"]
    elif isinstance(kind, dict):
        values = st.fixed_dictionaries({}, optional={one: KINDS[type_] for one, type_ in kind["fields"].items()})
    elif name.startswith("allowed-") and kind == "json":
        values = st.lists(st.sampled_from(["*", "a b", "-x", "é"]), min_size=1, max_size=3)
    else:
        values = KINDS[kind]
    if flag["several"]:
        first = values if kind == "int" else values.filter(lambda one: not one.startswith("-"))
        values = st.lists(first, min_size=1, max_size=3) | values.map(lambda one: [one])
    return values | st.just(True) if flag["bare"] else values


def rendered(args: dict[str, Any], tmp: Path) -> list[str]:
    """The words of `vllm serve` for ``args``, by way of a project file."""
    file = tmp / "envgen.yaml"
    written = json.dumps(args, ensure_ascii=False)
    file.write_text(
        f"{HEAD}    services: {{serve: {{command: [vllm, serve, m], args: {written}}}}}\n", encoding="utf-8"
    )
    argv = load_project(file=file, environ={}).project.profiles["dev"].services["serve"].argv
    assert argv[:3] == ("vllm", "serve", "m")
    return list(argv[2:])


def test_every_flag_arrives_as_it_is_written(parse: Parse, tmp_path: Path) -> None:
    flags = parse({})
    assert SECRET & flags.keys() == SECRET
    flags = {name: one for name, one in flags.items() if name not in SECRET}
    known = {name: one for name, one in flags.items() if one["kind"] is not None or one["choices"]}
    assert len(known) > 190 and len(flags) - len(known) <= 2, [name for name in flags if name not in known]
    assert {short: SHORT.get(short) for one in flags.values() for short in one["short"]} == {
        short: name for name, one in flags.items() for short in one["short"]
    }
    valid = 0

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.fixed_dictionaries({}, optional={name: values_of(one, name) for name, one in known.items()}))
    def arrives(args: dict[str, Any]) -> None:
        nonlocal valid
        answer = parse({"words": rendered(args, tmp_path), "wanted": args})
        assume("invalid" not in answer)
        assert answer == {"differ": []}
        valid += 1

    arrives()
    assert valid > 8


def test_a_dotted_flag_arrives_below_its_name(parse: Parse, tmp_path: Path) -> None:
    flags = [name for name, one in parse({}).items() if one["kind"] in ("json", "either") and not one["choices"]]
    flags = [name for name in flags if not name.startswith("allowed-")]
    below = st.one_of(
        st.booleans(),
        *NUMBERS.values(),
        st.lists(st.integers(-5, 9) | st.booleans(), min_size=1),
        KINDS["json"],
        WORDS.filter(lambda one: not is_json(one)),
    )

    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(flags), st.dictionaries(KEYS, below, min_size=1, max_size=3), st.booleans())
    def arrives(name: str, values: dict[str, Any], deep: bool) -> None:
        dotted = {f"{name}.{'inner.' if deep else ''}{key}": one for key, one in values.items()}
        wanted = {name: {"inner": values} if deep else values}
        words = [*rendered(dotted, tmp_path), "--enforce-eager"]
        assert parse({"words": words, "wanted": {**wanted, "enforce-eager": True}}) == {"differ": []}

    arrives()


def is_json(text: str) -> bool:
    """Whether vLLM reads ``text`` below a dot as another value: JSON, or a number with a unit."""
    try:
        return json.loads(text) is not math.nan
    except ValueError:
        return text.strip()[-1:] in tuple("kKmMgGtT") and text.strip()[:1].isdigit()
