"""Which engine, and where the plugins are: from files and variables alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from envgen.engine import process
from envgen.engine.api import unreachable
from envgen.engine.endpoint import (
    DEFAULT_SOCKET,
    Endpoint,
    SshAddress,
    find_endpoint,
    find_plugin,
    outdated,
    plugin_argv,
    plugin_version,
    require_plugin,
)
from envgen.engine.values import ExecResult, too_old
from envgen.errors import EngineError, ExitCode


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


def define(config: Path, name: str, host: str) -> None:
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("env", "config_file", "found"),
    [
        ({"DOCKER_HOST": "tcp://here:2375", "DOCKER_CONTEXT": "far"}, "{}", Endpoint("tcp://here:2375", "DOCKER_HOST")),
        ({"DOCKER_HOST": "/run/x.sock"}, "{}", Endpoint("unix:///run/x.sock", "DOCKER_HOST")),
        ({"DOCKER_CONTEXT": "far"}, '{"currentContext": "near"}', Endpoint("ssh://far", "the context 'far'")),
        ({}, '{"currentContext": "near"}', Endpoint("unix:///near.sock", "the context 'near'")),
        *[
            ({}, text, Endpoint(DEFAULT_SOCKET))
            for text in ("", "{", "[]", '{"currentContext": ""}', '{"currentContext": "default"}')
        ],
    ],
)
def test_which_engine(config: Path, env: dict[str, str], config_file: str, found: Endpoint) -> None:
    define(config, "far", "ssh://far")
    define(config, "near", "unix:///near.sock")
    (config / "config.json").write_text(config_file)
    assert find_endpoint({"DOCKER_CONFIG": str(config), **env}) == found
    assert found.local is found.host.startswith("unix:")


def test_a_context_that_is_not_defined(config: Path) -> None:
    with pytest.raises(EngineError, match=r"context 'gone' .* is not defined") as caught:
        find_endpoint({"DOCKER_CONTEXT": "gone", "DOCKER_CONFIG": str(config)})
    assert "docker context use default" in str(caught.value)


@pytest.mark.parametrize("folder", ["config/cli-plugins", "extra"])
def test_plugins_of_the_user_come_first(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    mine = program(tmp_path / folder, "docker-buildx")
    (config / "config.json").write_text(json.dumps({"cliPluginsExtraDirs": [str(tmp_path / "extra")]}))
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    assert find_plugin("buildx") == mine and plugin_argv("buildx") == [str(mine)]


def test_tls_is_refused(config: Path) -> None:
    """An engine that wants TLS is not asked in the clear."""
    env = {"DOCKER_HOST": "tcp://far:2376", "DOCKER_TLS_VERIFY": "1", "HOME": "/h"}
    with pytest.raises(EngineError, match="needs TLS"):
        find_endpoint(env)
    assert find_endpoint(env | {"DOCKER_TLS_VERIFY": ""}).host == "tcp://far:2376"
    assert find_endpoint(env | {"DOCKER_HOST": "unix:///x"}).local
    define(config, "far", "tcp://far:2376")
    by_name = {"DOCKER_CONTEXT": "far", "DOCKER_CONFIG": str(config)}
    assert find_endpoint(by_name).host == "tcp://far:2376"
    (config / "contexts" / "tls" / hashlib.sha256(b"far").hexdigest() / "docker").mkdir(parents=True)
    with pytest.raises(EngineError, match="needs TLS"):
        find_endpoint(by_name)


@pytest.mark.parametrize("host", ["npipe:////./pipe/docker", "fd://", "example.com:2375", "-x"])
def test_addresses_of_another_kind(host: str) -> None:
    with pytest.raises(EngineError, match="envgen cannot use the engine"):
        find_endpoint({"DOCKER_HOST": host})


def test_buildx_absent(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgen.engine.endpoint.SYSTEM_PLUGINS", ())
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    with pytest.raises(EngineError, match="plugin buildx is not installed") as caught:
        plugin_argv("buildx")
    assert "docker-buildx-plugin" in str(caught.value) and caught.value.exit_code == ExitCode.ENGINE


@pytest.mark.parametrize(
    ("output", "version", "old"),
    [
        ("github.com/docker/buildx v0.29.1 a1b2c3", "0.29.1", False),
        ("github.com/docker/buildx 0.9.1+ds1 0.9.1+ds1-4", "0.9.1", True),
        ("github.com/docker/buildx v0.10.0-rc1", "0.10.0", False),
        ("Built from a branch", "", False),
    ],
)
def test_the_version_of_a_plugin(
    config: Path, monkeypatch: pytest.MonkeyPatch, output: str, version: str, old: bool
) -> None:
    program(config / "cli-plugins", "docker-buildx")
    monkeypatch.setattr(process, "run", lambda *argv, **_how: ExecResult(0, output.encode(), b""))
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    assert plugin_version("buildx") == version and outdated("buildx", version) is old
    if not old:
        require_plugin("buildx")
        return
    with pytest.raises(EngineError, match=r"is 0\.9\.1, and envgen needs 0\.10 or newer") as caught:
        require_plugin("buildx")
    assert "docker-buildx-plugin" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ({"Version": "28.5.2+dfsg4", "ApiVersion": "1.51"}, ""),
        ({"Version": "25.0.0", "ApiVersion": "1.44"}, ""),
        (
            {"Version": "24.0.9", "ApiVersion": "1.43"},
            "this Docker Engine is 24.0.9; envgen needs Docker Engine 25 or newer",
        ),
        ({"Version": "dev", "ApiVersion": "1.52"}, ""),
        ({"Version": "dev", "ApiVersion": "1.43"}, "this Docker Engine is dev"),
        ({}, "this Docker Engine is of no version"),
        (
            {"Version": "5.4.2", "Components": [{"Name": "Podman Engine"}]},
            "this is Podman 5.4.2, which has no BuildKit",
        ),
    ],
)
def test_too_old(version: dict[str, object], sentence: str) -> None:
    assert sentence in too_old(version)
    assert bool(too_old(version)) == bool(sentence)


DEFAULT = Endpoint(DEFAULT_SOCKET)


@pytest.mark.parametrize(
    ("endpoint", "error", "path", "sentence"),
    [
        (DEFAULT, FileNotFoundError(2, "x"), "", "Docker is not installed"),
        (DEFAULT, FileNotFoundError(2, "x"), "bin", "the Docker Engine is not running: no socket"),
        (Endpoint("unix:///x", chosen_by="DOCKER_HOST"), FileNotFoundError(2, "x"), "", "unix:///x (from DOCKER_HOST)"),
        (DEFAULT, ConnectionRefusedError(111, "x"), "bin", "is stopped"),
        (DEFAULT, PermissionError(13, "x"), "bin", "no permission to use the Docker Engine"),
        (DEFAULT, OSError(113, "No route to host"), "bin", "No route to host"),
    ],
)
def test_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, error: OSError, path: str, sentence: str
) -> None:
    program(tmp_path / "bin", "docker")
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    raised = unreachable(endpoint, error)
    assert sentence in str(raised) and raised.exit_code == ExitCode.ENGINE
    assert len(raised.problems) == 1 and "\n" not in raised.problems[0].message


# What an ssh:// address becomes: the words of an ssh, and never an option of one


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ssh://spark", SshAddress("spark")),
        ("ssh://me@Spark.Local:2222", SshAddress("Spark.Local", "me", 2222)),
        ("ssh://spark/run/user/1000/docker.sock", SshAddress("spark", socket="/run/user/1000/docker.sock")),
        ("ssh://spark/", SshAddress("spark")),
    ],
)
def test_ssh_addresses(text: str, found: SshAddress) -> None:
    assert SshAddress.parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "ssh://", "ssh:///x", "ssh://-oProxyCommand=x", "ssh://-x@host", "ssh://%2DoProxyCommand=x", "ssh://a%20b",
        "ssh://u%0A@host", "ssh://me:secret@host", "ssh://host:x", "ssh://host:99999", "ssh://host?x", "ssh://host#x",
        "ssh://host/a:b",
    ],
)  # fmt: skip
def test_what_ssh_would_misread_is_refused(text: str) -> None:
    with pytest.raises(EngineError):
        SshAddress.parse(text)


def test_nothing_is_asked_and_no_key_is_waved_through() -> None:
    words = SshAddress.parse("ssh://me@spark:22").argv("/l:/r")
    assert words[-3:] == ["--", "spark", "cat"] and words[words.index("-l") + 1] == "me"
    assert "BatchMode=yes" in words and "ControlMaster=no" in words
    assert not [word for word in words if "HostKey" in word or "KnownHosts" in word]
