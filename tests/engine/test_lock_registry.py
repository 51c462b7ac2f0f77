"""Base images from a real registry, with and without a password, and from servers that fail in every way."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_servers import Answer, failing, push_image, registry

from envgen.errors import LockError
from envgen.lock.credentials import Credentials
from envgen.lock.model import ImageLock
from envgen.lock.registry import resolve_image
from envgen.lock.web import Web
from envgen.profile.values import ImageRef

PASSWORD = "hunter2-never-shown"
BCRYPT = "$2b$04$abcdefghijklmnopqrstuuTFqJglj5RRw1TVRquzCwGAtAT9tu1CC"  # of that password
S390 = {"os": "linux", "architecture": "s390x"}
MANIFEST = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:" + "a" * 64, "platform": S390}]}).encode()


def resolve(name: str, folder: Path, said: list[str] | None = None, *, timeout: float = 5) -> ImageLock:
    credentials = Credentials({"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:/usr/bin:/bin"})
    say = said.append if said is not None else lambda _line: None
    return resolve_image(ImageRef.parse(name), Web(say, timeout=timeout, pause=0.01), credentials)


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


def test_a_tag_becomes_digests_of_both_platforms(open_registry: str, tmp_path: Path) -> None:
    pushed = push_image(open_registry, "nvidia/pytorch", "25.12", "one")
    found = resolve(f"{open_registry}/nvidia/pytorch:25.12", tmp_path)
    assert found.digest == pushed["index"]
    assert dict(found.platforms) == {p: pushed[p] for p in ("linux/amd64", "linux/arm64")}
    assert found.created == 1765425906
    assert found.resolved == "registry"


def test_a_moved_tag_is_seen_when_it_is_asked_for(open_registry: str, tmp_path: Path) -> None:
    first = push_image(open_registry, "moving", "1", "one")
    assert resolve(f"{open_registry}/moving:1", tmp_path).digest == first["index"]
    second = push_image(open_registry, "moving", "1", "two")
    assert resolve(f"{open_registry}/moving:1", tmp_path).digest == second["index"] != first["index"]
    pinned = resolve(f"{open_registry}/moving:1@{first['index']}", tmp_path)
    assert pinned.digest == first["index"]


def test_what_is_not_there_is_said(open_registry: str, tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"nothing:1: 127\.0\.0\.1:\d+ has no 1 of it \(404\)"):
        resolve(f"{open_registry}/nothing:1", tmp_path)


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    with registry(tmp_path_factory.mktemp("closed"), f"alice:{BCRYPT}\n") as host:
        proof = {"Authorization": "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()}
        yield host, push_image(host, "private", "1", "one", proof)


def login(folder: Path, host: str, password: str = PASSWORD) -> None:
    auth = base64.b64encode(f"alice:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_dockers_own_login_is_used(closed_registry: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    host, pushed = closed_registry
    login(tmp_path, host)
    assert resolve(f"{host}/private:1", tmp_path).digest == pushed["index"]


def test_a_credential_helper_is_asked(
    closed_registry: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, pushed = closed_registry
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        f'#!/bin/sh\nread server\n[ "$1 $server" = "get {host}" ] || {{ echo "credentials not found"; exit 1; }}\n'
        f'echo \'{{"Username": "alice", "Secret": "{PASSWORD}"}}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {host: "test"}}))
    assert resolve(f"{host}/private:1", tmp_path).digest == pushed["index"]


def test_a_wrong_or_missing_password_is_never_shown(
    closed_registry: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    host, _ = closed_registry
    with pytest.raises(LockError, match="wants a user and password") as caught:
        resolve(f"{host}/private:1", tmp_path)
    assert f"docker login {host}" in str(caught.value)
    login(tmp_path, host, "wrong-" + PASSWORD)
    with pytest.raises(LockError, match=r"does not accept the user and password.*\(401\)") as caught:
        resolve(f"{host}/private:1", tmp_path)
    assert PASSWORD not in str(caught.value)


def test_tokens_are_fetched_with_the_login(tmp_path: Path) -> None:
    def script(path: str, _number: int) -> Answer:
        if path.startswith("/token"):
            assert "scope=repository%3Ax%3Apull" in path
            return 200, {}, b'{"token": "t0ken"}'
        if server.authorizations[-1] == "Bearer t0ken":
            return 200, {}, MANIFEST
        return (
            401,
            {"WWW-Authenticate": f'Bearer realm="http://{server.host}/token",service="s",scope="repository:x:pull"'},
            b"",
        )

    with failing(script) as server:
        login(tmp_path, server.host)
        assert list(resolve(f"{server.host}/x:1", tmp_path).platforms) == ["linux/s390x"]
    assert server.authorizations[1].startswith("Basic ")


@pytest.mark.parametrize(
    "trouble",
    [(500, {}, b""), (503, {}, b""), (429, {"Retry-After": "0"}, b""), (200, {"Content-Length": "9999"}, MANIFEST)],
)
def test_what_passes_is_tried_again(trouble: Answer, tmp_path: Path) -> None:
    said: list[str] = []
    with failing(lambda _path, number: trouble if number < 3 else (200, {}, MANIFEST)) as server:
        found = resolve(f"{server.host}/x:1", tmp_path, said)
    assert found.digest == f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
    assert len(server.asked) == 3
    assert len(said) == 2


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    def script(_path: str, number: int) -> Answer:
        return (429, {"Retry-After": "1"}, b"") if number == 1 else (200, {}, MANIFEST)

    started = time.monotonic()
    with failing(script) as server:
        resolve(f"{server.host}/x:1", tmp_path)
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((500, {}, b"oops"), r"answered 500 \(4 tries\)"),
        ((403, {}, b""), r"forbids it \(403\)"),
        ((429, {"Retry-After": "3600"}, b""), "asks to wait 3600 s"),
        ((200, {"Content-Length": "9999"}, MANIFEST), "broke off in the middle"),
        ((200, {"Docker-Content-Digest": "sha256:" + "0" * 64}, MANIFEST), "what came has the digest"),
        ((200, {}, b"<html>login</html>"), "is not JSON"),
        ((200, {}, b"[]"), "old kind"),
        ((401, {}, b""), "a proof of a kind that is not known"),
        ((401, {"WWW-Authenticate": 'Bearer realm="http://far.example/t"'}, b""), "unencrypted"),
    ],
)
def test_each_failure_has_its_sentence(answer: Answer, sentence: str, tmp_path: Path) -> None:
    with failing(lambda _path, _number: answer) as server, pytest.raises(LockError, match=sentence) as caught:
        resolve(f"{server.host}/x:1", tmp_path)
    assert str(caught.value).startswith(f"{server.host}/x:1: ")


def test_a_wrong_digest_of_what_was_pinned(tmp_path: Path) -> None:
    with failing(lambda _path, _number: (200, {}, MANIFEST)) as server, pytest.raises(LockError, match="asked for was"):
        resolve(f"{server.host}/x@sha256:{'1' * 64}", tmp_path)


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with (
        failing(lambda _path, _number: None) as server,
        pytest.raises(LockError, match=r"did not answer within 0\.3 s"),
    ):
        resolve(f"{server.host}/x:1", tmp_path, timeout=0.3)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot be reached: Connection refused"):
        resolve("127.0.0.1:9/x:1", tmp_path)


def test_a_broken_configuration_of_docker(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with (
        failing(lambda _p, _n: (401, {"WWW-Authenticate": "Basic realm=x"}, b"")) as server,
        pytest.raises(LockError) as e,
    ):
        resolve(f"{server.host}/x:1", tmp_path)
    assert "cannot be read" in str(e.value)
