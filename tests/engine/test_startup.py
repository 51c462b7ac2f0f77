"""What a start of the program imports: each module costs every command its time."""

from __future__ import annotations

import subprocess
import sys


def test_help_imports_click_and_next_to_nothing() -> None:
    code = "import sys, envgen.__main__ as m; m.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "envgen build --profile dev" in done.stdout
    loaded = set(done.stderr.split())
    click = subprocess.run(
        [sys.executable, "-c", "import sys, click; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    ours = {"envgen", "envgen.errors", "envgen.headstart", "envgen.record", "envgen.__main__", "envgen.cli"}
    # click's own, for printing: its text wrapper, and the language of its messages.
    printing = {"click._textwrap", "textwrap", "locale", "_locale"}
    assert loaded - set(click.stdout.split()) - ours - printing == set()
