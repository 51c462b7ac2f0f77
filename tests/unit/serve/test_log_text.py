"""Lines of a container's log: matched in bounded time, printed without secrets."""

from __future__ import annotations

import pytest

from envgen.logpattern import LogPattern
from envgen.serve.ended import log_text
from envgen.serve.wait import Evidence


@pytest.mark.parametrize("pattern", [r"(x+x+)+y", r"(a|aa)+$b", r"(.*.*.*.*)*z", r"^(\w+\s?)*$!"])
def test_a_hostile_line_ends_every_pattern(pattern: str) -> None:
    """Each of them would keep a backtracking matcher busy for longer than the universe has been there."""
    found = Evidence({"a": pattern}, {"b": pattern})
    for line in ("x" * 5000, "a" * 5000, "word " * 1000, "\udc80" * 5000):
        found.feed(line)
    assert found.missing == ("a",) and found.forbidden is None


def test_what_is_looked_for_is_found() -> None:
    assert LogPattern(r"Using (AttentionBackendEnum\.)?FLASHINFER( attention)? backend").found_in(
        "INFO 11-22 [cuda.py:1] Using FLASHINFER attention backend out of ['FLASHINFER']"
    )
    assert LogPattern("(?i)größe").found_in("die GRÖßE")


def test_what_is_not_linear_is_refused() -> None:
    for pattern in (r"(?=a)b", r"(a)\1", "(?<!x)y", "(", "x{5000}"):
        with pytest.raises(ValueError, match=r"\w"):
            LogPattern(pattern)


def test_a_log_line_is_printed_without_secrets() -> None:
    line = "HF_TOKEN=hf_abcdefghijklmnopqrstuv HTTP_PROXY=http://me:pw@proxy:3128 /home/anna/x \x1b[31mred\x1b[0m"
    shown = log_text(line)
    assert "hf_abc" not in shown and "me:pw" not in shown and "\x1b" not in shown
    assert "/home/anna/x" in shown, "paths are the user's own and help him"
