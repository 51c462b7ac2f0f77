"""Commands that envgen proposes, read by a real shell."""

from __future__ import annotations

import os
import subprocess

from hypothesis import example, given, settings
from hypothesis import strategies as st

from envgen.text import shell_line, visible

NAMES = st.text(st.characters(exclude_categories=[], exclude_characters="\0"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(NAMES.map(lambda one: os.fsdecode(one.encode("utf-8", "replace"))), min_size=1, max_size=8))
@example(["a\nb", "it's \\ \x1b[31m", "\x7f'", "", "\\\n'", "\u202eabc", "\udcff\n", "\x01" + "1f", "$(id)\n`id`"])
def test_a_shell_reads_the_same_words_from_one_printable_line(words: list[str]) -> None:
    line = shell_line(words)
    assert visible(line) == line and "\n" not in line
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]
