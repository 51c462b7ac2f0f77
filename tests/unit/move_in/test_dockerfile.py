"""Dockerfiles as they are found: continued lines, here-documents, ARG in FROM, many stages, directives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.move_in.dockerfile import instructions, read, stages
from envgen.move_in.draft import Draft


def drafted(text: str, **options: Any) -> Draft:
    draft = Draft("unit", "main")
    read(draft, text, "Dockerfile", **options)
    return draft


def test_instructions_keep_their_lines() -> None:
    text = "# syntax=docker/dockerfile:1\n\nFROM a AS b\nRUN one \\\n  # a comment\n\n  two\nENV A=1\n"
    found = instructions(text)
    assert [(one.line, one.keyword) for one in found] == [(3, "FROM"), (4, "RUN"), (8, "ENV")]
    assert found[1].text.split() == ["one", "two"]


def test_the_escape_directive_counts_only_at_the_top() -> None:
    assert instructions("# escape=`\nFROM a\nRUN x `\n y\n")[1].text.split() == ["x", "y"]
    assert len(instructions("# a comment\n# escape=`\nFROM a\nRUN x `\nUSER 1\n")) == 3


def test_here_documents_are_one_instruction() -> None:
    text = (
        "FROM a\nRUN <<EOF\napt-get update\napt-get install -y git\nFROM not-a-stage\nEOF\n"
        "COPY <<-'E' <<F /x/\n\ta\n\tE\nb\nF\nUSER 1\n"
    )
    found = instructions(text)
    assert [(one.line, one.keyword) for one in found] == [(1, "FROM"), (2, "RUN"), (7, "COPY"), (12, "USER")]
    assert "not-a-stage" in found[1].script
    assert drafted(text.replace("FROM not-a-stage\n", "")).get("apt", "runtime") == ["git"]


def test_a_here_string_is_none() -> None:
    assert len(instructions("FROM a\nRUN cat <<<EOF\nUSER 1\n")) == 3


def test_arguments_in_from_and_many_stages() -> None:
    text = (
        "ARG TAG=1\nARG REPO\nFROM --platform=linux/arm64 nvcr.io/x/${REPO:-y}:${TAG} AS base\nENV A=base\n"
        "FROM base as builder\nRUN make\nFROM BASE\nARG V=2\nENV B=$V C=${A}\n"
    )
    assert [one.image for one in stages(instructions(text), {"TAG": "9"})] == ["nvcr.io/x/y:9", "base", "BASE"]
    draft = drafted(text, build_args={"TAG": "9", "V": "7"})
    assert draft.get("base") == {"image": "nvcr.io/x/y:9", "platform": "linux/arm64"}
    assert draft.get("env", "settings") == {"A": "base", "B": "7", "C": "base"}
    assert [(one.line, one.what) for one in draft.unplaced] == [(5, "stage builder")]
    assert drafted(text, target="builder").get("env", "settings") == {"A": "base"}


def test_an_image_without_a_value_is_listed() -> None:
    draft = drafted("ARG BASE\nFROM ${BASE}\n")
    assert draft.get("base") is None
    assert draft.unplaced[0].what == "FROM"


@pytest.mark.parametrize(
    ("line", "apt", "tools", "left"),
    [
        ("apt-get update && apt-get install -y --quiet aa bb && rm -rf /var/lib/apt/lists/*", ["aa", "bb"], None, 0),
        ("DEBIAN_FRONTEND=noninteractive apt-get install -qy aa=1:2", ["aa=1:2"], None, 0),
        ("apt-get install -y $PACKAGES", None, None, 1),
        ("apt-get install -t backports a", None, None, 1),
        ("python3 -m pip install -U 'a>=1,<2' b[c]==3", None, ["a>=1,<2", "b[c]==3"], 0),
        ("uv pip install --system a", None, ["a"], 0),
        ("pip install -r requirements.txt", None, None, 1),
        ("pip install --extra-index-url https://x.example/ a", None, None, 1),
        ("pip install git+https://github.com/a/b", None, None, 1),
        ("curl https://x.example/i.sh | sh", None, None, 1),
        ("--mount=type=cache,target=/root/.cache pip install a; make", None, ["a"], 1),
        ('["pip", "install", "a"]', None, ["a"], 0),
        ("echo 'unclosed", None, None, 1),
    ],
)  # fmt: skip
def test_what_a_run_installs(line: str, apt: list[str] | None, tools: list[str] | None, left: int) -> None:
    draft = drafted(f"FROM a\nRUN {line}\n")
    assert draft.get("apt", "runtime") == apt
    assert draft.get("pip", "tools") == tools
    assert len(draft.unplaced) == left


def test_released_wheels_are_sources() -> None:
    draft = drafted("FROM a\nRUN pip install vllm==0.32.0 flashinfer-python==0.7.0\n")
    assert draft.get("sources", "vllm", "origin") == {"wheel": "vllm==0.32.0"}
    assert draft.get("sources", "flashinfer", "package") == "flashinfer"


def test_secrets_are_not_copied() -> None:
    run = "RUN curl -H 'Authorization: Bearer abcdefgh12345678' x"
    draft = drafted(f"FROM a\nARG T=hf_abcdefghijklmnopqrstuv\nENV HF_TOKEN=$T\n{run}\n")
    assert draft.get("secrets") == ["HF_TOKEN"]
    assert "hf_abc" not in repr(draft) and "abcdefgh12345678" not in repr(draft)


def test_values_that_double_end() -> None:
    text = "FROM a\nENV A0=xxxxxxxx\n" + "".join(f"ENV A{n + 1}=$A{n}$A{n}$A{n}$A{n}\n" for n in range(60))
    assert len(repr(drafted(text).values)) < 10_000_000


LINES = st.sampled_from(
    ["FROM a", "FROM $X AS y", "FROM y", "ARG X=1", "ENV A=$X B='", "ENV A 1", "RUN x \\", "RUN <<E", "E", "", "# c",
     "COPY a", "CMD [", "ENTRYPOINT x", "USER 1", "WORKDIR /w", "RUN pip install", "RUN apt-get install", "\\", "RUN [",
     "ENV", "FROM"]
)  # fmt: skip


@given(st.lists(LINES, max_size=12), st.sampled_from(["", "y"]))
def test_any_dockerfile_can_be_read(lines: list[str], target: str) -> None:
    found = instructions("\n".join(lines))
    assert [one.line for one in found] == sorted({one.line for one in found})
    drafted("\n".join(lines), target=target)
