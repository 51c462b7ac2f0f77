"""Questions in threads: trouble of others is a problem of the lock, a defect of envgen is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.values import Image
from envgen.errors import EngineError, LockError
from envgen.inside.run import NoAnswer
from envgen.lock.ask import Upgrade, python_asks
from envgen.lock.model import GitLock, ImageLock, Lock, PythonLock
from envgen.lock.resolve import _ask_image, _hint, resolve
from envgen.profile.load import load_project

COMMIT = "b" * 40
PROJECT = f"""\
version: 1
name: p
profiles:
  prod:
    mode: production
    base: {{image: "h:5000/base:1"}}
    cuda: {{arch_list: 12.1a}}
    sources:
      one: {{origin: {{git: "https://h/one.git", ref: v1}}, package: one, distribution: one, mount: /w/one}}
      two: {{origin: {{git: "https://h/two.git", ref: v1}}, package: two, distribution: two, mount: /w/two}}
    caches: {{huggingface: {{path: /root/.cache/huggingface, host: ~/.cache/huggingface}}}}
    services:
      serve: {{command: [vllm, serve, a/m], model: {{repo: a/m, revision: {COMMIT}}}}}
"""


def resolve_git(url: str, ref: str) -> GitLock:
    """A git server that has lost one of its two repositories."""
    if "two" in url:
        raise LockError("it is gone")
    return GitLock(url, ref, "c" * 40, "tag")


def no_engine() -> Any:
    raise EngineError("Docker is stopped")


def test_what_has_no_answer_stays_and_all_else_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(PROJECT)
    profiles = list(load_project(file=file, environ={}).project.profiles.values())
    base = ImageLock("h:5000/base:1", f"sha256:{'a' * 64}")
    before = {f"https://h/{name}.git v1": GitLock(f"https://h/{name}.git", "v1", "d" * 40) for name in ("one", "two")}
    old = Lock({base.name: base, "gone:1": base}, before, {"gone": {}}, {"a/gone main": "e" * 40})
    monkeypatch.setattr("envgen.lock.resolve.connect", no_engine)
    monkeypatch.setattr("envgen.lock.resolve.resolve_git", resolve_git)
    out = resolve(profiles, profiles, old, Upgrade(("one", "two")), {})
    assert out.lock.images == {base.name: base} and not out.lock.python  # and what no profile names is gone
    assert [out.lock.git[key].commit for key in sorted(before)] == ["c" * 40, "d" * 40]
    assert out.lock.models == {f"a/m {COMMIT}": COMMIT}
    assert {one.key for one in out.problems} == {"sources.two.origin", "base.image"}
    messages = [one.problem.message for one in out.problems]
    assert "it is gone" in messages and any("no Docker Engine answers" in message for message in messages)
    assert out.notes == ["no engine: Docker is stopped"]
    monkeypatch.setattr("envgen.lock.resolve.resolve_git", lambda url, ref: url + 1)
    with pytest.raises(TypeError):  # a defect of envgen is none of the lock's problems
        resolve(profiles, profiles, old, Upgrade(("one",)), {})


@pytest.mark.parametrize(
    ("image", "digests", "local"),
    [
        ("h:5000/base:1", (), True),
        ("h:5000/base:1", ("h:5000/base@sha256:" + "1" * 64,), False),
        ("h:5000/base:1", ("mirror:5000/base@sha256:" + "1" * 64,), True),
        ("docker.io/library/debian:12", ("debian@sha256:" + "1" * 64,), False),
    ],
)
def test_an_image_that_only_another_registry_has_is_locked_as_it_is_here(
    image: str, digests: tuple[str, ...], local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envgen.yaml").write_text(PROJECT.replace("h:5000/base:1", image), encoding="utf-8")
    profile = load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["prod"]
    deployment = Image("sha256:" + "2" * 64, {}, "2026-01-01T00:00:00Z", 1, "amd64", (image,), {}, repo_digests=digests)
    asked: list[str] = []
    monkeypatch.setattr("envgen.lock.resolve.resolve_image", lambda ref: asked.append(str(ref)))
    engine: Any = SimpleNamespace(image=lambda _name: deployment)
    found = _ask_image(profile, engine)
    assert (found is not None, asked) == (local, [] if local else [image])


@pytest.mark.parametrize(
    ("server", "commit", "still_read", "note"),
    [
        ("c" * 40, "c" * 40, False, ""),
        ("d" * 40, "d" * 40, False, f"one v1 was read as {'c' * 40} in a file; now it is {'d' * 40}"),
        ("", "c" * 40, True, "one v1 stays as it was read in a file, and was not compared: it is gone"),
    ],
)
def test_what_was_read_elsewhere_is_asked_for_and_compared(
    server: str, commit: str, still_read: bool, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(url: str, ref: str) -> GitLock:
        if not server:
            raise LockError("it is gone")
        return GitLock(url, ref, server, "tag")

    file = tmp_path / "envgen.yaml"
    file.write_text(PROJECT)
    profiles = list(load_project(file=file, environ={}).project.profiles.values())
    base, key = ImageLock("h:5000/base:1", f"sha256:{'a' * 64}"), "https://h/one.git v1"
    git = {
        f"https://h/{name}.git v1": GitLock(f"https://h/{name}.git", "v1", "c" * 40, "tag") for name in ("one", "two")
    }
    monkeypatch.setattr("envgen.lock.resolve.connect", no_engine)
    monkeypatch.setattr("envgen.lock.resolve.resolve_git", answer)
    out = resolve(
        profiles, profiles, Lock({base.name: base}, git, read={key: "a file", "gone v1": "a file"}), Upgrade(), {}
    )
    assert out.lock.git[key].commit == commit
    assert out.lock.read == ({key: "a file"} if still_read else {})
    assert out.notes[1:] == ([note] if note else [])
    assert "it is gone" not in [one.problem.message for one in out.problems]


HERE = Image("sha256:" + "a" * 64, {}, "2026-01-01T00:00:00Z", 1, "arm64", ("h:5000/base:1",), {})
FAMILY = [{"name": name, "version": version, "hashes": ["b" * 64]}
          for name, version in (("flashinfer-python", "0.5.3"), ("flashinfer-cubin", "0.5.2"))]  # fmt: skip
PIN = {"name": "numpy", "version": "2.0", "hashes": ["b" * 64]}


@pytest.mark.parametrize(
    ("answer", "words", "hint", "note"),
    [
        ({"ok": {"sets": {"uv": [PIN]}, "python": "3.12", "open": {}, "clash": ""}}, "", "", ""),
        ({"ok": {"sets": {}, "open": {"install.one": "why"}, "clash": ""}}, "", "", "install.one is not locked"),
        ({"ok": {"sets": {}, "open": {}, "clash": "a<2"}}, "", "", "no versions suit pip.tools"),
        ({"ok": {"sets": {"deps": FAMILY}, "open": {}, "clash": ""}}, "cubin 0.5.2, flashinfer-python 0.5.3", "", ""),
        ({"failed": "invalid peer Certificate"}, "invalid peer", "network.ca_certificates", ""),
        ({"failed": "403 Forbidden"}, "403 Forbidden", "", ""),
        (NoAnswer("exit", "", (), 101), "h:5000/base:1 has no python3", "base.apt: [python3,", ""),
        (NoAnswer("exit", "", ("a", "boom"), 1), "cannot resolve them there", "Python 3.8 or newer", ""),
    ],
)
def test_packages_are_resolved_in_the_base_of_their_profiles(
    answer: Any, words: str, hint: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envgen.yaml").write_text(PROJECT)
    profiles = list(load_project(file=tmp_path / "envgen.yaml", environ={}).project.profiles.values())
    base = ImageLock("h:5000/base:1", HERE.id)
    other = PythonLock(python_asks(profiles[0], HERE.id), "3.11", {"uv": ()}, {})
    asked: list[tuple[str, Any]] = []

    def in_image(_engine: Any, image: str, **_more: Any) -> Any:
        return lambda *_: asked.append((image, None))

    def reply(_execute: Any, python: str, _program: Any, request: Any, **_more: Any) -> Any:
        asked.append((python, request["python"]["prod"]["sets"][0]["name"]))
        return answer if isinstance(answer, NoAnswer) else {"arch": "arm64", "python": {"prod": answer}}

    monkeypatch.setattr("envgen.lock.resolve.connect", lambda: SimpleNamespace(image=lambda _name: HERE))
    monkeypatch.setattr("envgen.lock.resolve.resolve_git", lambda url, ref: GitLock(url, ref, "c" * 40, "tag"))
    monkeypatch.setattr("envgen.lock.resolve.run.in_image", in_image)
    monkeypatch.setattr("envgen.lock.resolve.run.ask", reply)
    old = Lock({base.name: base}, {}, {"prod": {"linux/amd64": other, "linux/s390x": PythonLock("x", "", {}, {})}})
    out = resolve(profiles, profiles, old, Upgrade(), {})
    assert asked == [("python3", "uv")]
    assert [one.problem.message for one in out.problems if words not in one.problem.message] == []
    assert bool(out.problems) == bool(words) and all(hint in one.problem.hint for one in out.problems)
    assert not hint or out.problems[0].problem.hint
    assert len(out.notes) == bool(note) and note in " ".join(out.notes)
    new = out.lock.python["prod"]
    # Another platform's packages stay if they answer the same question.
    assert {*new} == ({"linux/amd64", "linux/s390x"} if words else {"linux/amd64", "linux/arm64"})


@pytest.mark.parametrize(
    ("pip", "text", "asks"),
    [
        ("index: https://h/simple", "401 Unauthorized", True),
        ("index: https://h/simple", "a time-out", False),
        ("index: https://h/simple, netrc: logins", "401 Unauthorized", False),
        ("tools: [rich]", "401 Unauthorized", False),
    ],
)
def test_who_is_asked_whether_an_index_wants_a_login(tmp_path: Path, pip: str, text: str, asks: bool) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(PROJECT.replace("    cuda:", f"    pip: {{{pip}}}\n    cuda:"))
    (profile,) = load_project(file=file, environ={}).project.profiles.values()
    assert ("login" in _hint(text, profile)) is asks
