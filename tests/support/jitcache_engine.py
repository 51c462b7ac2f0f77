"""An engine that runs the agent in this process, and a project that uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitcache_layouts import put

from envgen.deployment import Deployment
from envgen.engine.host import Leftover
from envgen.engine.values import Container, ContainerMount, EngineInfo, ExecResult, Image
from envgen.inside.jit.main import answer
from envgen.jitcache.service import JitCache
from envgen.profile.load import load_project, select

ROOT = "/root/.cache/flashinfer"
PROJECT = """\
version: 1
name: demo
default_profile: dev
profiles:
  dev:
    mode: development
    base: {{image: base:1}}
    cuda: {{arch_list: "12.1a"}}
    gpu: none
    caches: {{{caches}}}
    services:
      dev: {{command: [sleep, infinity]}}
"""


def container(name: str, *, service: str = "", state: str = "running", project: str = "demo-dev",
              mounts: Sequence[ContainerMount] = (), env: Mapping[str, str] | None = None) -> Container:  # fmt: skip
    labels = {"com.docker.compose.project": project} if service else {}
    return Container(name, name, service, state, "", 0, "", labels, env or {}, tuple(mounts), (), "")


class LocalEngine:
    """Runs the agent in this process, with the container's root put for a folder of ours."""

    def __init__(
        self, folder: Path, containers: Sequence[Container] = (), images: Sequence[str] = ("demo:dev",)
    ) -> None:
        self.folder = folder
        self._containers = containers
        self._images = images
        self.volumes_ = {"demo-dev-cache-flashinfer"}
        self.asked: list[tuple[str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.mounts: tuple[ContainerMount, ...] = ()
        self.made: dict[str, str] = {}  # volume -> its time
        self.removed: list[str] = []
        self.left: list[Leftover] = []

    def info(self) -> EngineInfo:
        return EngineInfo("28", "1.51", "x86_64", (), (), 0, 0, "unix:///run/docker.sock")

    def image(self, name: str) -> Image | None:
        return Image(name, {}, "", 0, "", (), {}) if name in self._images else None

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[Container, ...]:
        found = [c for c in self._containers if all or c.state == "running"]
        return tuple(c for c in found if project is None or c.labels.get("com.docker.compose.project") == project)

    def container(self, name: str) -> Container | None:
        return next((one for one in self._containers if one.id == name), None)

    def volume(self, name: str) -> str | None:
        return "/var/lib/docker/volumes" if name in self.volumes_ else None

    def volumes(self, text: str) -> dict[str, str]:
        return {name: self.made.get(name, "") for name in sorted(self.volumes_) if text in name}

    def volume_labels(self, name: str) -> Mapping[str, str]:
        return {}

    def create_volume(self, name: str, labels: Mapping[str, str], driver: str = "", options: object = None) -> None:
        self.volumes_.add(name)

    def remove_volume(self, name: str) -> None:
        self.volumes_.remove(name)
        self.removed.append(name)

    def leftovers(self) -> tuple[Leftover, ...]:
        return tuple(self.left)

    def remove_container(self, name: str) -> str:
        self.left = [one for one in self.left if one.id != name]
        self._containers = [one for one in self._containers if one.id != name]
        return ""

    def exec(
        self, container_id: str, argv: Sequence[str], *, stdin: bytes = b"", user: str = "", **_: Any
    ) -> ExecResult:
        self.asked.append((container_id, user))
        return self._run(container_id, stdin)

    def run_once(self, image: str, argv: Sequence[str], *, stdin: bytes = b"", mounts: Sequence[ContainerMount] = (),
                 user: str = "", **_: Any) -> ExecResult:  # fmt: skip
        self.asked.append((image, user))
        self.mounts = tuple(mounts)
        return self._run(image, stdin)

    def _run(self, where: str, stdin: bytes) -> ExecResult:
        if where in self.answers:
            data = self.answers[where]
            return data if isinstance(data, ExecResult) else result_of(stdin, data)
        request = json.loads(stdin)["request"]
        self.requests.append(dict(request))
        if request.get("root"):
            request["root"] = request["root"].replace(ROOT, str(self.folder))
        for mount in self.mounts:
            for key in ("target", "source", "parent"):
                if str(request.get(key, "")).startswith(mount.target):
                    request[key] = mount.source + request[key][len(mount.target) :]
        return result_of(stdin, answer(request))


def result_of(stdin: bytes, document: Any) -> ExecResult:
    """The document as the frame writes it."""
    return ExecResult(0, (json.loads(stdin)["mark"] + " " + json.dumps({"answer": document})).encode(), b"")


VOLUME = ContainerMount("demo-dev-cache-flashinfer", ROOT, "volume")


def cache(
    tmp_path: Path, engine: LocalEngine, caches: str = f"flashinfer: {{path: {ROOT}, namespace: false}}"
) -> JitCache:
    file = put(tmp_path / "project/envgen.yaml", PROJECT.format(caches=caches))
    project = load_project(file=file).project
    return JitCache(Deployment(select(project, None), project.root).with_cached(engine=engine))
