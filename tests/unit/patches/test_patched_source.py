"""Where the code that a series is tried on comes from, in what order, and under which name. git is a stand-in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.errors import EnvgenError, UsageError
from envgen.patches import source
from envgen.patches.source import PatchedSource, put
from envgen.patches.wheel import File
from envgen.profile.load import load_project

URL = "https://git.example/lib"
COMMIT = "1" * 40
FETCHED = "f" * 40
ORIGINS = {
    "mounted": "{checkout: ../lib}",
    "git": f"{{git: '{URL}', ref: main}}",
    "tag": f"{{git: '{URL}', ref: v2.0}}",
    "exact": f"{{git: '{URL}', ref: '{COMMIT}'}}",
    "wheel": "{wheel: lib==1.5}",
    "open": "{wheel: lib}",
}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the git server is asked. A checkout knows HEAD and v1.5."""
    asked: list[Any] = []

    class Work:
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def commit(self, ref: str) -> str:
            return {"HEAD": "a" * 40, "v1.5": "b" * 40}.get(ref, "")

        def git(self, words: list[str], check: bool = True) -> Any:
            return SimpleNamespace(code=0 if (self.folder / "tags").exists() else 128, text="v1.4\n")

    def mirror(url: str, ref: str, *, moves: bool, timeout: float) -> tuple[None, str]:
        asked.append((url, ref, moves))
        return None, FETCHED

    def released(*words: Any) -> str:
        if words[1] == "1.5":
            return f"the wheel {words[0]} {words[1]}"
        raise EnvgenError("no such wheel")

    monkeypatch.setattr(source, "WorkTree", Work)
    monkeypatch.setattr(source, "Mirror", SimpleNamespace(fetched=mirror))
    monkeypatch.setattr(source, "released", released)
    return asked


def patched(folder: Path, origin: str, distribution: str = "lib", **values: Any) -> PatchedSource:
    (folder / "project").mkdir(exist_ok=True)
    file = folder / "project/envgen.yaml"
    mount = ", mount: /code/lib" if origin == "mounted" else ""
    file.write_text(
        "version: 1\nname: t\nprofiles:\n  p:\n    mode: development\n    base: {image: b}\n"
        "    cuda: {arch_list: 12.1a}\n    sources:\n      lib: {package: lib, patches: lib, "
        f"distribution: {distribution}, origin: {ORIGINS[origin]}{mount}}}\n"
    )
    profile = load_project(file=file, environ={}).project.profiles["p"]
    return PatchedSource("lib", profile, profile.sources["lib"], file.parent, **values)


LOCKED = {"commit": COMMIT}


@pytest.mark.parametrize(
    ("origin", "ref", "values", "label", "commit", "version", "asked"),
    [
        ("mounted", "", {}, "HEAD of LIB", "a" * 40, "1.4", []),
        ("mounted", "v1.5", {}, "v1.5 of LIB", "b" * 40, "1.4", []),
        ("git", "", {}, f"main of {URL}", FETCHED, "", [(URL, "main", True)]),
        ("git", "", LOCKED, f"main of {URL}, locked at {FETCHED[:12]}", FETCHED, "", [(URL, COMMIT, False)]),
        ("git", "v3.0", LOCKED, f"v3.0 of {URL}", FETCHED, "3.0", [(URL, "v3.0", False)]),
        ("tag", "", {}, f"v2.0 of {URL}", FETCHED, "2.0", [(URL, "v2.0", False)]),
        ("exact", "", {}, f"{COMMIT[:12]} of {URL}", FETCHED, "", [(URL, COMMIT, False)]),
        ("wheel", "v1.5", {"checkouts": True}, "v1.5 in LIB", "b" * 40, "1.5", []),
    ],
)
def test_the_commit_and_its_name(
    tmp_path: Path, fetched: list[Any], origin: str, ref: str, values: dict[str, Any], label: str, commit: str,
    version: str, asked: list[Any],
) -> None:  # fmt: skip
    lib = tmp_path / "lib"
    (lib / "tags").mkdir(parents=True)
    if values.get("checkouts"):
        values = {"checkouts": (lib,)}
    tree: Any = patched(tmp_path, origin, **values).unpatched(ref)
    assert (tree.label, tree.commit, tree.version) == (label.replace("LIB", str(lib)), commit, version)
    assert fetched == asked


def test_a_release_is_its_wheel_or_else_its_tag(
    tmp_path: Path, fetched: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(patched(tmp_path, "wheel").unpatched()) == "the wheel lib 1.5"
    assert str(patched(tmp_path, "open", locked="1.5").unpatched()) == "the wheel lib 1.5"
    tree: Any = patched(tmp_path, "open", "vllm", locked="1.6").unpatched()
    assert (tree.label, tree.version) == ("v1.6 of https://github.com/vllm-project/vllm.git", "1.6")
    assert [words[1:] for words in fetched] == [("v1.6", False)]
    assert "only a checkout or the repository of lib is asked" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the version of lib in profile p is not known"):
        patched(tmp_path, "open").unpatched()
    with pytest.raises(UsageError, match="the version of lib in profile p is not known"):
        patched(tmp_path, "open").wheel()  # no index is asked for "lib "
    with pytest.raises(UsageError, match="the git repository of lib is not known"):
        patched(tmp_path, "open", locked="1.6").unpatched()


def test_a_mounted_checkout_is_beside_the_project(tmp_path: Path, fetched: list[Any]) -> None:
    one = patched(tmp_path, "mounted", locked="9")
    assert one.mounted == tmp_path / "lib"
    assert one.version == ""  # the folder is not there
    assert (one.folder, patched(tmp_path, "wheel").mounted) == ("patches/lib", None)
    assert patched(tmp_path, "git", locked="1.2").version == "1.2"


def test_files_keep_whether_they_can_be_run(tmp_path: Path) -> None:
    put(tmp_path, {"a/x.sh": File(b"1", True), "b": File(b"2", False)})
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a/x.sh", "b")] == [0o755, 0o644]
