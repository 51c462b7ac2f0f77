"""What a registry's answer means: digests by platform, a time, or why there is none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine import process
from envgen.engine.process import ProcessTimeout
from envgen.errors import EngineError, LockError, ProcessError
from envgen.lock import servers
from envgen.lock.servers import registry_error, resolve_image
from envgen.profile.values import ImageRef

A, B, C, D = ("sha256:" + digit * 64 for digit in "abcd")
CREATED = {"created": "2025-12-11T04:05:06.789Z"}


def entry(platform: Any, digest: Any = A) -> dict[str, Any]:
    return {"digest": digest, "platform": platform}


LINUX = [
    entry({"os": "linux", "architecture": "arm64", "variant": "v8"}, B),
    entry({"os": "linux", "architecture": "arm64", "variant": "v9"}, C),
    entry({"os": "linux", "architecture": "amd64"}),
    entry({"os": "unknown", "architecture": "unknown"}),
    entry({"os": "windows", "architecture": "amd64"}),
    entry({"os": "linux", "architecture": "s390x"}, "sha256:short"),
    entry(None),
    7,
]


@pytest.mark.parametrize(
    ("document", "wanted", "platforms", "seconds"),
    [
        ({"manifest": {"digest": D}, "image": {"os": "linux", "architecture": "arm64", **CREATED}}, "",
         {"linux/arm64": D}, 1765425906),
        ({"manifest": {"digest": D}, "image": {"architecture": "amd64"}}, D, {"linux/amd64": D}, 0),
        ({"manifest": {"digest": D, "manifests": LINUX}, "image": {
            "linux/arm64/v8": CREATED, "linux/amd64": {"created": "2025-12-10T00:00:00Z"},
            "linux/riscv64": {"created": "2026-01-01T00:00:00Z"}, "linux/386": None}}, "",
         {"linux/arm64": B, "linux/amd64": A}, 1765425906),
        ({"manifest": {"digest": D, "manifests": LINUX}}, "", {"linux/arm64": B, "linux/amd64": A}, 0),
        ({"manifest": {"digest": D, "manifests": [LINUX[3]]}}, "", "names no image for linux", 0),
        ({"manifest": {"digest": "sha256:a"}}, "", "its registry gives no digest", 0),
        ([], "", "its registry gives no digest", 0),
        ({"manifest": {"digest": D}}, A, f"the answer has the digest {D}", 0),
        ("not JSON", "", "buildx printed no JSON", 0),
    ],
)  # fmt: skip
def test_the_answer_of_a_registry(
    document: Any, wanted: str, platforms: Any, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"reg.io/a:1{'@' + wanted if wanted else ''}"
    text = document if isinstance(document, str) else json.dumps(document)
    monkeypatch.setattr(servers, "plugin_argv", lambda _: ["buildx"])
    monkeypatch.setattr(process, "run", lambda *_, **__: SimpleNamespace(code=0, stdout=text.encode(), stderr=b""))
    if isinstance(platforms, str):
        with pytest.raises(LockError, match=f"{name}: .*{platforms}"):
            resolve_image(ImageRef.parse(name))
        return
    lock = resolve_image(ImageRef.parse(name))
    assert (lock.name, lock.digest, dict(lock.platforms), lock.created) == (name, D, platforms, seconds)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (b"ERROR: toomanyrequests: slow\n\n", "reg.io refuses more requests for now (429)", "`docker login reg.io`"),
        (b"x\nerror: failed: 401 Unauthorized", "reg.io needs a login, or has no such image", "`docker login reg.io`"),
        (b"denied", "reg.io forbids it (403)", "access to this image"),
        (b"manifest unknown", "reg.io has no such image", "the tag still exists"),
        (b"x509: unknown authority", "TLS with reg.io failed: x509: unknown authority", "certs.d/reg.io/ca.crt"),
        (b"dial tcp: lookup x", "reg.io cannot be reached: dial tcp: lookup x", "its proxy"),
        (b"ERROR: something \x1b[1m else", "something", "try `docker buildx imagetools inspect reg.io/a:1`"),
        (b" \n", "buildx gave no reason", "try `docker buildx"),
        (b"ERROR: https://me:word@reg.io broke", "https://reg.io broke", "try"),
        (ProcessTimeout(["x"], 7, ""), "reg.io did not answer within 7 s", "its proxy"),
        (ProcessError(["docker"], 1, "no docker"), "`docker` ended with 1: no docker", ""),
    ],
)
def test_a_registry_that_refuses(words: Any, message: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(words, Exception):
            raise words
        return SimpleNamespace(code=1, stdout=b"", stderr=words)

    monkeypatch.setattr(servers, "plugin_argv", lambda _: ["buildx"])
    monkeypatch.setattr(process, "run", run)
    with pytest.raises(LockError) as refused:
        resolve_image(ImageRef.parse("reg.io/a:1"), timeout=7)
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"reg.io/a:1: {message}") and hint in problem.hint
    assert "\x1b" not in problem.message


def test_an_image_without_a_registry_is_of_docker_io() -> None:
    assert registry_error("403", ImageRef.parse("a"), hint="").problems[0].message == "docker.io forbids it (403)"


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("warning: x\nfatal: not a repository\nsomething\n", "not a repository"),
        ("ERROR: Repository not found.\nfatal: Could not read from remote repository.\n", "Repository not found."),
        ("remote: gone\n", "gone"),
        ("\n  odd words \n", "odd words"),
        ("", "git failed"),
        ("fatal: https://me:pw@h/x\n", "https://h/x"),
    ],
)
def test_gits_own_reason(stderr: str, reason: str) -> None:
    assert servers._sentence(stderr) == reason


def test_git_that_cannot_be_started_is_a_problem_of_the_lock() -> None:
    def ask() -> Any:
        raise EngineError("git is not installed", hint="install it")

    with pytest.raises(LockError, match="git is not installed") as caught:
        servers._git(ask, 1)
    assert caught.value.problems[0].hint == "install it"
