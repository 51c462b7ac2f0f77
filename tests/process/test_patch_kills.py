"""SIGKILL at any moment of `patch apply`, `new` and `refresh`: the next run finishes or takes back; nothing is left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patch_sources import tree_hash

from envgen import files
from envgen.engine.git import git
from envgen.patches import series as folder
from envgen.patches.checkout import APPLIED, Checkout
from envgen.patches.series import load_series

KILLS = int(os.environ.get("ENVGEN_EXAMPLES", "10"))
MODULES = [f"pkg/m{number}.py" for number in range(40)]


def patch(number: int, line: str) -> str:
    """A patch that adds a line to many files, and makes one."""
    parts = [f"Description: number {number}\n\n"]
    for name in MODULES[number * 10 : number * 10 + 10]:
        parts.append(f"--- a/{name}\n+++ b/{name}\n@@ -1,2 +1,3 @@\n a = 1\n+{line} = {number}\n b = 2\n")
    parts.append(f"--- /dev/null\n+++ b/pkg/new/n{number}.py\n@@ -0,0 +1 @@\n+n = {number}\n")
    return "".join(parts)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "patches" / "pkg").mkdir(parents=True)
    for number in range(4):
        (root / "patches" / "pkg" / f"000{number + 1}-p.patch").write_text(patch(number, "c"))
    (root / "patches" / "pkg" / "series").write_text("".join(f"000{n + 1}-p.patch\n" for n in range(4)))
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "checkout"
    for name in MODULES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("a = 1\nb = 2\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        git(words, cwd=top)
    return top


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(files, "SHORT", tmp_path / "tmp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def killed(program: str, *words: str | Path, longest: float) -> bool:
    """Run a program that prints a line when it begins, and kill it at a random moment. Whether it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert child.stdout and child.stdout.readline() == b"begin\n"
    time.sleep(random.uniform(0, longest))
    child.kill()
    child.wait()
    child.stdout.close()
    return child.returncode < 0


def settle(top: Path) -> None:
    """Wait until no git that the killed process had started is at work there."""
    while True:
        at_work = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and int(process.name) != os.getpid():
                try:
                    at_work.append((process / "cwd").readlink().is_relative_to(top))
                except OSError:
                    continue
        if not any(at_work):
            return
        time.sleep(0.05)


def clean_up(root: Path, tmp: Path) -> None:
    for path in files.all_leftovers(root):
        assert not files.remove_leftover(path)
    assert list(tmp.iterdir()) == []
    assert not [path for path in root.rglob("*") if path.name.endswith(".tmp")]


APPLY = """
import sys
from pathlib import Path
from envgen.patches.checkout import Checkout
from envgen.patches.series import load_series
there, series = Checkout(Path(sys.argv[1])), load_series(Path(sys.argv[2]), "pkg")
print("begin", flush=True)
there.apply(series)
there.reverse()
"""


def test_apply_and_reverse(project: Path, checkout: Path, tmp_path: Path) -> None:
    before = tree_hash(checkout)
    series = load_series(project, "pkg")
    started = time.monotonic()
    Checkout(checkout).apply(series)
    after = tree_hash(checkout)
    Checkout(checkout).reverse()
    took = time.monotonic() - started
    assert tree_hash(checkout) == before
    outcomes = set()
    for _ in range(KILLS):
        killed(APPLY, checkout, project, longest=took)
        settle(checkout)
        manifest = Checkout(checkout).manifest()
        outcomes.add(manifest.state if manifest else "")
        if manifest:
            assert manifest.state == APPLIED
            assert tree_hash(checkout) == after
            Checkout(checkout).reverse()
        assert tree_hash(checkout) == before
        assert not list((checkout / ".git").glob("*.lock"))
        assert not list((checkout / ".git").glob("envgen-patches.json"))
        clean_up(project, tmp_path / "tmp")
    Checkout(checkout).apply(series)
    assert not list((checkout / ".git").glob(".envgen-*.tmp"))
    assert outcomes


def test_a_half_applied_series_that_somebody_edited_is_not_touched(project: Path, checkout: Path) -> None:
    from dataclasses import replace

    from envgen.errors import RefusedError
    from envgen.patches.checkout import UNDERWAY

    before = (checkout / MODULES[0]).read_text()
    there = Checkout(checkout)
    manifest = there.apply(load_series(project, "pkg"))
    there._write(replace(manifest, state=UNDERWAY))
    (checkout / MODULES[0]).write_text("mine = 1\n")
    (checkout / MODULES[1]).write_text("a = 1\nb = 2\n")
    with pytest.raises(RefusedError, match="half applied"):
        Checkout(checkout).manifest()
    assert (checkout / MODULES[0]).read_text() == "mine = 1\n"
    (checkout / MODULES[0]).write_text(before)
    assert Checkout(checkout).manifest() is None
    assert Checkout(checkout).dirty() == []
    assert not (checkout / "pkg" / "new").exists()


NEW = """
import sys
from pathlib import Path
from envgen.patches import series as folder
print("begin", flush=True)
folder.add(Path(sys.argv[1]), "patches/pkg", "mine", "Description: mine\\n", Path(sys.argv[2]).read_bytes())
"""


def test_new(project: Path, tmp_path: Path) -> None:
    diff = tmp_path / "diff"
    series = project / "patches" / "pkg" / "series"
    for number in range(KILLS):  # a change that is there already is refused
        diff.write_text(f"--- /dev/null\n+++ b/pkg/mine.py\n@@ -0,0 +1 @@\n+n = {number}\n")
        before = series.read_text()
        killed(NEW, project, diff, longest=0.02)
        if series.read_text() == before:
            folder.add(project, "patches/pkg", "mine", "Description: mine\n", diff.read_bytes())
        there = sorted(path.name for path in series.parent.glob("*.patch"))
        assert there == sorted(series.read_text().split()), "a file without a line, or a line without a file"
        assert load_series(project, "pkg")
        clean_up(project, tmp_path / "tmp")


def test_a_file_that_was_not_named_yet_is_named_by_the_next_run(project: Path) -> None:
    series = project / "patches" / "pkg" / "series"
    diff = b"--- /dev/null\n+++ b/pkg/mine.py\n@@ -0,0 +1 @@\n+n = 1\n"
    before = series.read_text()
    path = folder.add(project, "patches/pkg", "mine", "Description: mine\n", diff)
    series.write_text(before)
    assert folder.add(project, "patches/pkg", "mine", "Description: mine\n", diff) == path


REFRESH = """
import sys
from pathlib import Path
from envgen.patches import series as folder
root = Path(sys.argv[1])
old, new = (word.encode() for word in sys.argv[2:4])
contents = {p.name: p.read_bytes().replace(old, new) for p in (root / "patches/pkg").glob("*.patch")}
print("begin", flush=True)
folder.rewrite(root, "patches/pkg", contents)
"""


def test_refresh(project: Path, tmp_path: Path) -> None:
    own = project / "patches" / "pkg"
    names = ["c =", "d ="]
    for _ in range(KILLS):
        killed(REFRESH, project, *names, longest=0.03)
        folder.complete(project, "patches/pkg")
        text = "".join(one.content.decode() for one in load_series(project, "pkg").patches)
        assert (names[0] in text) != (names[1] in text), "half of the series was carried over"
        if names[1] in text:
            names.reverse()
        assert sorted(path.name for path in own.iterdir() if not path.name.endswith(".tmp")) == [
            *(f"000{n + 1}-p.patch" for n in range(4)),
            "series",
        ]
        clean_up(project, tmp_path / "tmp")
