"""Quoting: what each language can carry comes back as it was; what it cannot is refused with a reason."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from envgen.render import quote
from envgen.render.quote import Quoted

# Anything that is text: no lone surrogates. Newlines, controls, U+0085, U+2028, BOM and astral characters included.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r"))


@given(TEXT.filter(lambda text: "\0" not in text))
def test_text_in_a_compose_file_has_no_dollar_that_compose_would_expand(text: str) -> None:
    written = quote.compose_value({"services": {"a": [text, {"b": text}]}})
    first, read = yaml.safe_load(written)["services"]["a"]
    assert written.isascii() and read == {"b": first}
    assert "$" not in first.replace("$$", "")
    assert first.replace("$$", "$") == text


@pytest.mark.parametrize(
    "word", ["y", "n", "yes", "no", "No", "on", "off", "true", "false", "null", "1", "0x1", "~", "<<"]
)
def test_text_that_is_something_else_to_yaml_is_quoted(word: str) -> None:
    assert quote.compose_value({word: [word]}) == f'{{"{word}": ["{word}"]}}'
    assert quote.compose_value(word) == f'"{word}"'


@given(TEXT)
@example("\x85 \x7f \u2028 \ufffe 1e3 \U0001f600")
def test_json_says_the_same_to_a_yaml_parser(text: str) -> None:
    written = quote.as_json([text, {text: 1e3}])
    assert yaml.safe_load(f"a: {written}") == {"a": [text, {text: 1000.0}]} and json.loads(written)[0] == text


def test_a_variable_of_compose_s_stays_one() -> None:
    assert quote.compose_value([quote.Interpolated("${B:-2}"), "$3", 4]) == '["${B:-2}", "$$3", 4]'


@given(LINE)
def test_shell_words_are_one_word(text: str) -> None:
    assert shlex.split(quote.shell_word(text)) == [text]


@given(st.lists(LINE))
def test_shell_words_stay_apart(words: list[str]) -> None:
    assert shlex.split(quote.shell_words(words)) == words


def test_words_that_are_too_long_for_one_line_together() -> None:
    with pytest.raises(ValueError, match="longer than 60000 bytes, which a RUN line cannot carry"):
        quote.shell_words(["x" * 9000] * 8)


@given(LINE)
def test_docker_values_stay_inside_their_quotes(text: str) -> None:
    inner = quote.docker_value(text)[1:-1]
    assert not re.search(r'(?<!\\)(\\\\)*["$]', inner)
    assert re.sub(r"\\(.)", r"\1", inner, flags=re.S) == text


@given(TEXT.filter(lambda text: "\0" not in text))
def test_comments_are_one_printable_ascii_line(text: str) -> None:
    assert re.fullmatch(r"[ -~]*", quote.comment(text))


@given(LINE)
def test_defaults_of_variables_are_plain_or_refused(text: str) -> None:
    if re.search(r"[${}]", text):
        with pytest.raises(ValueError, match="cannot carry"):
            quote.compose_variable("X", text)
    else:
        assert quote.compose_variable("X", text) == f"${{X:-{text}}}"


def composed(text: str) -> str:
    return quote.compose_value({"a": text})


REFUSED = [
    (quote.docker_value, "a\nb", "line break"),
    (quote.docker_value, "a\rb", "line break"),
    (quote.docker_value, "a\0b", "NUL"),
    (quote.docker_value, "\ud800", "surrogate"),
    (quote.docker_value, "x" * 60_001, "longer"),
    (quote.docker_value, "é" * 30_001, "longer"),
    (quote.shell_word, "a\nb", "line break"),
    (quote.shell_word, "a\0b", "NUL"),
    (composed, "a\0b", "NUL"),
    (composed, "\udfff", "surrogate"),
    (lambda text: quote.compose_variable("X", text), "a\nb", "line break"),
    (lambda text: quote.compose_variable("X", "", after=text), "a\nb", "line break"),
    (lambda text: quote.compose_variable("X", "", after=text), "$a", "cannot carry"),
    (quote.comment, "\ud800", "surrogate"),
    (quote.mount_path, "a,b", "mount"),
    (quote.mount_path, "a b", "mount"),
    (quote.mount_path, "$HOME", "mount"),
    (quote.mount_path, "", "mount"),
    (quote.image_ref, "a b", "image"),
    (quote.image_ref, "$X", "image"),
    (quote.image_ref, "a\n", "image"),
    (quote.docker_line, "RUN a\nb", "line break"),
    (quote.docker_line, "FROM x", "not one line"),
    (quote.docker_line, "RUN a \\", "not one line"),
    (quote.docker_line, "RUN cat <<E", "not one line"),
    (quote.checksum, "a" * 63, "SHA-256"),
    (quote.identifier, "a b", "name"),
    (quote.identifier, "a\n", "name"),
    (quote.identifier, "1a", "name"),
]


@pytest.mark.parametrize(("function", "text", "reason"), REFUSED)
def test_what_a_language_cannot_carry_is_refused(function, text: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=reason):
        function(text)


@pytest.mark.parametrize("word", ["plain", "a=b", "/path/to:x", "a,b", "50%", "name@host", "a+b", "v1.0-rc_2"])
def test_words_without_meaning_to_a_shell_stay_readable(word: str) -> None:
    assert quote.shell_word(word) == word


@pytest.mark.parametrize("word", ["", "~", "*", "<<EOF", "a b", "$x", "#", "!", "`x`", "a;b", "é"])
def test_other_words_begin_with_a_quote(word: str) -> None:
    """The Dockerfile parser takes a word that begins with `<<` for a here-document; one in quotes it leaves alone."""
    assert quote.shell_word(word)[0] == "'"


def test_a_variable_without_default_says_what_it_wants() -> None:
    assert quote.compose_variable("X", None, reason="a folder") == "${X:?a folder}"


def test_prepended_values_end_with_the_variable_itself() -> None:
    assert quote.docker_prepend("P", "/a$b") == '"/a\\$b${P:+:$P}"'


@pytest.mark.parametrize("function", [quote.docker_value, quote.shell_word, quote.comment])
def test_all_of_them_mark_their_results(function) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(function("a b"), Quoted)


def test_the_places_of_a_copy_are_json_where_docker_would_read_more_in_them() -> None:
    assert quote.docker_copy("a/b:1", "/w") == "a/b:1 /w"
    assert quote.docker_copy("a b", "/$w") == r'["a b", "/\\$w"]'
    assert quote.comment("a\x7f\x1f~") == r"a\x7f\x1f~"


def test_the_longest_line() -> None:
    longest = "x" * 60_000
    assert quote.docker_value(longest) == f'"{longest}"'
    for text in (f"{longest}x", "é" * 30_001):
        with pytest.raises(ValueError, match="longer than 60000 bytes"):
            quote.docker_value(text)
