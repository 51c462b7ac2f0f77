"""Who runs envgen, and the user of a container."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.engine.client import Engine
from envgen.engine.endpoint import Endpoint
from envgen.engine.owner import caller, host_user, run_as
from envgen.engine.values import info_of
from envgen.errors import EngineError
from envgen.profile.model import Base, Cuda, Mode, Profile, Service
from envgen.profile.values import CudaArchList, ImageRef


def engine(*, rootless: bool = False) -> Any:
    return SimpleNamespace(info=lambda: SimpleNamespace(rootless=rootless))


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int, gid: int) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: gid)


def test_under_sudo_it_is_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0, 0)
    assert caller() == (0, 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "x")
    assert caller() == (0, 0)
    monkeypatch.setenv("SUDO_GID", "1001")
    assert caller() == (1000, 1001)
    as_user(monkeypatch, 7, 8)
    assert caller() == (7, 8)  # left over in the environment of somebody else


def test_root_of_a_rootless_engine_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 7, 8)
    assert host_user(engine()) == (7, 8)
    assert host_user(engine(rootless=True)) == (0, 0)


@pytest.mark.parametrize(("user", "wanted"), [("host", "7:8"), ("root", "0:0"), ("5", "5"), ("5:6", "5:6"), (None, "")])
def test_the_user_of_a_service(monkeypatch: pytest.MonkeyPatch, user: str | None, wanted: str) -> None:
    as_user(monkeypatch, 7, 8)
    base, cuda = Base(ImageRef.parse("example.org/base:1")), Cuda(CudaArchList.parse("12.1a"))
    services = {"serve": Service(command=("x",), user=user)}
    found = Profile("prod", "demo", Mode.PRODUCTION, base, cuda, services=services)
    assert run_as(engine(), found, "serve") == wanted
    assert run_as(engine(), found, "unknown") == ""


@pytest.mark.parametrize(("user", "mode"), [("", None), ("0:0", None), ("1000:1000", "host")])
def test_users_of_helpers_where_the_engine_remaps_them(user: str, mode: str | None) -> None:
    """Files in checkouts and caches keep the numbers of this machine, also under userns-remap."""
    asked: list[dict[str, Any]] = []

    def started(*_: object, send: dict[str, Any]) -> Any:
        asked.append(send)
        raise EngineError("far enough")

    docker = Engine.__new__(Engine)
    docker.endpoint, docker._info = (
        Endpoint("unix:///x"),
        info_of({"SecurityOptions": ["name=userns"]}, {}, "unix:///x"),
    )
    docker._session = cast(Any, SimpleNamespace(ask=started))
    with pytest.raises(EngineError, match="far enough"):
        docker.run_once("image", ["true"], user=user)
    assert asked[0]["HostConfig"].get("UsernsMode") == mode
