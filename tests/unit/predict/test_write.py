"""Patterns go into a project file as text; everything else in it stays."""

from __future__ import annotations

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from envgen.app.predict import snippet, with_patterns
from envgen.predict.judge import escape

PATH = ("profiles", "prod", "services", "serve", "ready", "expect")
TEXT = """\
profiles:
  prod:
    services:
      serve:
        ready:
          expect:
            # 0.14's words
            moe: Using Marlin backend   # stays
            quantization: "quantization=mxfp4"
          prompt: x
"""


def test_an_entry_is_replaced_and_a_new_one_put_in_front() -> None:
    found = with_patterns(TEXT, PATH, {"moe": "Using 'MARLIN' Mxfp4 MoE backend", "attention": r"A\.B backend"})
    assert found == TEXT.replace("Using Marlin backend  ", "'Using ''MARLIN'' Mxfp4 MoE backend'  ").replace(
        "moe:", "attention: 'A\\.B backend'\n            moe:"
    )


def test_a_mapping_on_one_line() -> None:
    text = "a: {b: {expect: {moe: Using Marlin, x: y}}}  # é\n"
    found = with_patterns(text, ("a", "b", "expect"), {"moe": "[M], {n}", "attention": "A"})
    assert found == "a: {b: {expect: {attention: 'A', moe: '[M], {n}', x: y}}}  # é\n"


def test_what_the_file_does_not_have_is_not_invented() -> None:
    assert with_patterns(TEXT, ("profiles", "dev", *PATH[2:]), {"moe": "x"}) is None
    assert with_patterns("a: {expect: {}}\n", ("a", "expect"), {"moe": "x"}) is None
    assert snippet(("a", "b"), {"moe": "it's"}) == "a:\n  b:\n    moe: 'it''s'"


@given(st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1))
def test_any_line_of_a_log_comes_back_as_a_pattern_that_finds_it(line: str) -> None:
    written = with_patterns(TEXT, PATH, {"moe": escape(line)})
    assert written is not None
    pattern = yaml.safe_load(written)["profiles"]["prod"]["services"]["serve"]["ready"]["expect"]["moe"]
    assert re.search(pattern, f"INFO {line} x")
