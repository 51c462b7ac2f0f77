"""Patterns of the rules: what a line must hold. Matching takes time linear in the length of the line.

Two spellings, both whatever the case:

- text, where ``*`` stands for anything: ``free memory on device * is less than desired``;
- ``{re: ..., has: ...}``: a regular expression whose every repetition is bounded, and a text that any match holds. The
  text is what makes it fast: the expression runs only on lines that have it. ``^`` means the line's own begin, behind
  what Docker, Compose and vLLM put in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# `#12 34.5 ` of a build, `serve-1  | ` of Compose, `(EngineCore_DP0 pid=17) ` of vLLM, `ERROR: `.
_BEGIN = r"^(?:#\d{1,5} (?:\d{1,7}\.\d{1,4} )?)?(?:[\w.-]{1,80} {1,40}\| )?(?:\([\w ]{1,60}pid=\d{1,9}\) )?(?:error: )?"
LONGEST_REPEAT = 200


@dataclass(frozen=True)
class Pattern:
    """``has``: a lower-case text that is in every matching line; ``rest`` is asked of such lines only."""

    has: str
    parts: tuple[str, ...] = ()
    expression: re.Pattern[str] | None = None

    def find(self, low: str) -> int:
        """Where the match begins in ``low`` (a line in lower case); -1 when there is none."""
        if self.expression is not None:
            match = self.expression.search(low)
            return -1 if match is None else match.start()
        begin = at = -1
        for part in self.parts:
            at = low.find(part, at if at > 0 else 0)
            if at < 0:
                return -1
            begin = at if begin < 0 else begin
            at += len(part)
        return begin


def read_pattern(node: object) -> Pattern:
    """One entry of a rule's ``match``. ValueError says what is wrong with it."""
    if isinstance(node, str):
        parts = tuple(part for part in node.lower().split("*") if part)
        if not parts or max(map(len, parts)) < 5:
            raise ValueError(f"a pattern needs a text of 5 characters or more: {node!r}")
        return Pattern(max(parts, key=len), parts)
    if isinstance(node, Mapping) and set(node) == {"re", "has"}:
        text = str(node["re"])
        _check_bounded(text)
        text = _BEGIN + text[1:] if text.startswith("^") else text
        return Pattern(str(node["has"]).lower(), expression=re.compile(text, re.I))
    raise ValueError(f"a pattern is a text, or `re` and `has`: {node!r}")


def _check_bounded(text: str) -> None:
    """Refuse what could take long: `*`, `+`, `{n,}`, and large repeats; a search is then linear in the line."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])+\]", "x", text)
    if re.search(r"[*+]|\{\d*,\}", bare):
        raise ValueError(f"a repetition without an end: {text!r}")
    if any(int(n) > LONGEST_REPEAT for n in re.findall(r"\{(?:\d*,)?(\d+)\}", bare)):
        raise ValueError(f"a repetition above {LONGEST_REPEAT}: {text!r}")
    if re.search(r"\)\{\d*,?([3-9]|\d\d)", bare):
        raise ValueError(f"a repeated group: {text!r}")
