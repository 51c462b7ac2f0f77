"""Who runs envgen, and the user of a container."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.owner import caller, host_user, run_as
from envgen.profile.model import Base, Cuda, Mode, Profile
from envgen.profile.service import Service
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
