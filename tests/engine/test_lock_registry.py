"""Base images from a real registry, with and without a password, and from servers that fail in every way."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_servers import failing, push_image, registry

from envgen.engine.endpoint import find_plugin
from envgen.errors import LockError
from envgen.lock.model import ImageLock
from envgen.lock.servers import resolve_image
from envgen.profile.values import ImageRef

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PASSWORD = "hunter2-never-shown"
BCRYPT = "$2b$04$abcdefghijklmnopqrstuuTFqJglj5RRw1TVRquzCwGAtAT9tu1CC"  # of that password


def resolve(name: str, folder: Path, *, timeout: float = 60) -> ImageLock:
    """With ``folder`` as Docker's configuration."""
    plugin = find_plugin("buildx")
    assert plugin
    with pytest.MonkeyPatch.context() as patch:
        (folder / "cli-plugins").mkdir(exist_ok=True)
        if not (folder / "cli-plugins" / "docker-buildx").exists():
            (folder / "cli-plugins" / "docker-buildx").symlink_to(plugin)
        patch.setenv("DOCKER_CONFIG", str(folder))
        patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return resolve_image(ImageRef.parse(name), timeout=timeout)


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


def test_what_is_missing_is_named(open_registry: str, tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"nothing:1: 127\.0\.0\.1:\d+ has no such image"):
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


def test_a_wrong_or_missing_password_is_never_shown(
    closed_registry: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    host, _ = closed_registry
    with pytest.raises(LockError, match="needs a login") as caught:
        resolve(f"{host}/private:1", tmp_path)
    assert f"docker login {host}" in str(caught.value)
    login(tmp_path, host, "wrong-" + PASSWORD)
    with pytest.raises(LockError, match="needs a login") as caught:
        resolve(f"{host}/private:1", tmp_path)
    assert PASSWORD not in str(caught.value)


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with failing(None) as server, pytest.raises(LockError, match=r"did not answer within 2 s"):
        resolve(f"{server.host}/x:1", tmp_path, timeout=2)
