"""What a patch may be, and what is refused with file, line and reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.errors import EnvgenError, Place, ProjectError
from envgen.patches.series import LARGEST, Patch, make_patch

SERIES = Place("patches/x/series", 3, 1)
HUNK = "@@ -1,1 +1,1 @@\n-old\n+new\n"


def plain(name: str, hunk: str = HUNK) -> str:
    return f"--- a/{name}\n+++ b/{name}\n{hunk}"


def with_info(name: str, *info: str, rest: str = "") -> str:
    return "".join(f"{line}\n" for line in (f"diff --git a/{name} b/{name}", *info)) + rest


def read(text: str | bytes) -> Patch:
    return make_patch("p.patch", "patches/x/p.patch", text.encode() if isinstance(text, str) else text, SERIES)


@pytest.mark.parametrize(
    ("text", "touches"),
    [
        (plain("x/a.py"), ("x/a.py",)),
        (plain("x/a.py\t2020-01-01 00:00:00"), ("x/a.py",)),
        (plain("x/a.py", "@@ -1,1 +1,1 @@\n-old\r\n+new\r\n"), ("x/a.py",)),  # a file that has CRLF itself
        (plain("x/a.py") + "-- \n2.39.5\n", ("x/a.py",)),  # as `git format-patch` ends
        ("Subject: [PATCH] words\n- a bullet\n+ another\n\n" + plain("x/a.py"), ("x/a.py",)),
        (with_info("x/n.py", "new file mode 100644", "index 0000000..e69de29"), ("x/n.py",)),
        (with_info("x/a.py", "old mode 100644", "new mode 100755"), ("x/a.py",)),
        (
            with_info("x/n.py", "deleted file mode 100644", rest="--- a/x/n.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
            ("x/n.py",),
        ),
        (
            "diff --git a/x/a.py b/x/b.py\nsimilarity index 100%\nrename from x/a.py\nrename to x/b.py\n",
            ("x/a.py", "x/b.py"),
        ),
        (b"--- a/x/a.py\n+++ b/x/a.py\n@@ -1,1 +1,1 @@\n-\xff\n+new\n", ("x/a.py",)),  # bytes that are not UTF-8
    ],
)
def test_what_is_taken(text: str | bytes, touches: tuple[str, ...]) -> None:
    assert read(text).touches == touches


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        (plain("../x"), "p.patch:1:1", "'a/../x'; a patch may change files of the source only"),
        (plain("x/../../y"), "p.patch:1:1", "files of the source only"),
        (plain("x/a.py") + plain("../x"), "p.patch:6:1", "files of the source only"),
        (plain("/etc/passwd"), "p.patch:1:1", "files of the source only"),
        ("--- /etc/passwd\n+++ /etc/passwd\n" + HUNK, "p.patch:1:1", "files of the source only"),
        (plain(".git/config"), "p.patch:1:1", "files of the source only"),
        (plain("x/.GIT/hooks/pre-commit"), "p.patch:1:1", "files of the source only"),
        ("--- x/a.py\n+++ x/a.py\n" + HUNK, "p.patch:1:1", "files of the source only"),
        ("diff --git a/x/a b/x/b\nrename from x/a\nrename to ../b\n", "p.patch:1:1", "files of the source only"),
        (plain("x/a.py").replace("\n", "\r\n"), "p.patch:1:1", "LF line endings"),
        ('--- "a/x/\\303"\n+++ "b/x/\\303"\n' + HUNK, "p.patch:1:1", "files of the source only"),
        (with_info("x/l", "new file mode 120000", "index 0..1"), "p.patch:2:1", "a file of mode 120000"),
        (with_info("x/l", "index 1..2 120000", rest=plain("x/l")), "p.patch:2:1", "a file of mode 120000"),
        (with_info("x", "index 1..2 160000", rest=plain("x")), "p.patch:2:1", "a file of mode 160000"),
        (plain("x/a.py") + "+more\n", "p.patch:6:1", "a change after the end of a hunk"),
        (HUNK, "p.patch:1:1", "not a unified diff"),
        ("", "series:3:1", "changes no file"),
        ("words\n", "series:3:1", "changes no file"),
        (b"\0\0\0", "series:3:1", "changes no file"),
        ("Applies-To: soon\n" + plain("x/a.py"), "p.patch:1:1", "'soon' is not a range of versions"),
        (b"x" * (LARGEST + 1), "p.patch", "4 MiB"),
    ],
)
def test_what_is_refused(text: str | bytes, where: str, reason: str) -> None:
    with pytest.raises(ProjectError) as caught:
        read(text)
    assert where in str(caught.value)
    assert reason in str(caught.value)


LINES = st.sampled_from(
    """\
--- a/x|+++ b/x|+++ b/../x|diff --git a/x b/x|@@ -1,1 +1,1 @@|@@ -1 +1,2 @@|-old|+new| same|rename from x
rename to .git/x|new file mode 120000|GIT binary patch|\\ No newline at end of file||--- /dev/null|+++ /dev/null
index 1..2 100644|@@|--- |+++ |Binary files a/x and b/x differ""".replace("\n", "|").split("|")
)


@given(st.one_of(st.lists(LINES).map("\n".join), st.text(), st.lists(LINES).map(lambda x: "\r\n".join(x) + "\n")))
def test_whatever_it_is_it_is_read_or_refused(text: str) -> None:
    try:
        found = read(text.encode("utf-8", "surrogatepass"))
    except EnvgenError:
        return
    for name in found.touches:
        assert not name.startswith("/")
        assert not {"..", ".git", ""}.intersection(name.split("/"))
