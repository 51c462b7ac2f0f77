"""The Engine of ``base.py`` on top of one API connection: what to ask, and how to read the answers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from envgen.engine.api import Api
from envgen.engine.base import (
    COMPOSE_PROJECT,
    COMPOSE_SERVICE,
    MEMORY,
    PIDS,
    Container,
    EngineInfo,
    ExecResult,
    Image,
    Mount,
)
from envgen.engine.endpoint import Endpoint
from envgen.engine.execs import KILLER, Exec, Started, new_mark, talk
from envgen.engine.frames import Demultiplexer
from envgen.engine.leftovers import CREATOR, THROWAWAY, Leftover, judge, this_process
from envgen.engine.parse import container_of, image_of, info_of
from envgen.errors import EngineError


class DockerEngine:
    """A reachable Docker Engine. Made by ``docker.connect()``."""

    def __init__(self, api: Api, endpoint: Endpoint) -> None:
        self._api = api
        self.endpoint = endpoint
        self._info: EngineInfo | None = None

    def info(self) -> EngineInfo:
        if self._info is None:
            greeting = self._api.request("GET", "/_ping").headers
            self._info = info_of(self._api.request("GET", "/info").check("info"), greeting, self.endpoint.host)
        return self._info

    def image(self, name: str) -> Image | None:
        answer = self._api.request("GET", f"/images/{quote(name, safe='/:@')}/json")
        return None if answer.status == 404 else image_of(answer.check(f"image {name}"))

    def container(self, name: str) -> Container | None:
        answer = self._api.request("GET", f"/containers/{quote(name)}/json")
        return None if answer.status == 404 else container_of(answer.check(f"container {name}"))

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[Container, ...]:
        labels = [f"{COMPOSE_PROJECT}={project}"] if project is not None else []
        labels += [f"{COMPOSE_SERVICE}={service}"] if service is not None else []
        query = {"all": "1" if all else "0", "filters": json.dumps({"label": labels} if labels else {})}
        rows = self._api.request("GET", "/containers/json", query).check("containers")
        # The list knows neither health nor environment; a container may be gone by the time we look at it.
        found = (self.container(row["Id"]) for row in rows)
        return tuple(sorted((c for c in found if c), key=lambda c: c.name))

    def inspect(self, name: str) -> Mapping[str, Any] | None:
        answer = self._api.request("GET", f"/containers/{quote(name)}/json")
        if answer.status == 404:
            return None
        document: Mapping[str, Any] = answer.check(f"container {name}")
        return document

    def logs(
        self, container_id: str, *, tail: int | None = 30, since: str = "", until: str = "", timestamps: bool = False
    ) -> str:
        query = {"stdout": "1", "stderr": "1", "tail": "all" if tail is None else str(tail)}
        query |= {name: value for name, value in (("since", since), ("until", until)) if value}
        query |= {"timestamps": "1"} if timestamps else {}
        answer = self._api.request("GET", f"/containers/{quote(container_id)}/logs", query)
        if answer.status >= 400:
            return ""
        frames = Demultiplexer(max(len(answer.body), 1), interleave=True)
        try:
            frames.feed(answer.body)
        except ValueError:  # a container with a terminal writes plain text
            return answer.body.decode(errors="replace")
        return frames.stdout.decode(errors="replace")

    def volume(self, name: str) -> str | None:
        answer = self._api.request("GET", f"/volumes/{quote(name)}")
        return None if answer.status == 404 else str(answer.check(f"volume {name}")["Mountpoint"])

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        self._api.request("POST", "/volumes/create", body={"Name": name, "Labels": dict(labels)}).check(
            f"volume {name}"
        )

    def volumes(self, text: str) -> tuple[str, ...]:
        filters = json.dumps({"name": [text]})
        found = self._api.request("GET", "/volumes", {"filters": filters}).check("volumes")
        return tuple(sorted(str(volume["Name"]) for volume in found["Volumes"] or ()))

    def remove_volume(self, name: str) -> None:
        answer = self._api.request("DELETE", f"/volumes/{quote(name)}")
        if answer.status != 404:
            answer.check(f"volume {name}")

    def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        user: str = "",
        workdir: str = "",
        timeout: float = 60,
    ) -> ExecResult:
        asked = Exec(container_id, tuple(argv), bool(stdin), tuple((env or {}).items()), user, workdir)
        mark = new_mark()

        def kill() -> None:
            self.exec(container_id, ["sh", "-c", KILLER, "sh", mark], user=user, timeout=15)

        if not self._api.can_stream:
            variables = [mark, *asked.variables]
            return self._exec_by_program(container_id, argv, variables, stdin, user, workdir, timeout, kill)
        started = self._start(asked, mark)
        output = talk(started.stream, stdin, timeout, asked.what, kill)
        state = self._api.request("GET", f"/exec/{started.id}/json").check(asked.what)
        return ExecResult(int(state["ExitCode"] or 0), output.stdout, output.stderr)

    def _start(self, asked: Exec, mark: str) -> Started:
        request: dict[str, Any] = {"Cmd": asked.argv, "Env": [mark, *asked.variables], "AttachStdin": asked.has_input}
        request |= {"AttachStdout": True, "AttachStderr": True, "User": asked.user, "WorkingDir": asked.workdir}
        created = self._api.request("POST", f"/containers/{quote(asked.container)}/exec", body=request)
        exec_id = str(created.check(asked.what)["Id"])
        stream = self._api.stream(f"/exec/{exec_id}/start", None, {"Detach": False, "Tty": False})
        return Started(exec_id, mark, stream)

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        user: str = "",
        network: str = "none",
        timeout: float = 60,
        memory: int = MEMORY,
    ) -> ExecResult:
        what = f"`{argv[0]}` in a container of {image}"
        body = _throwaway(image, argv, bool(stdin), mounts, env or {}, network, memory) | {"User": user}
        created = self._api.request("POST", "/containers/create", body=body)
        container_id = str(created.check(what)["Id"])
        from envgen.engine import process

        try:
            with process.terminable():
                return self._run_created(container_id, stdin, timeout, what)
        finally:
            self._remove(container_id)

    def _run_created(self, container_id: str, stdin: bytes, timeout: float, what: str) -> ExecResult:
        query = {"stream": "1", "stdout": "1", "stderr": "1", "stdin": "1" if stdin else "0"}
        if not self._api.can_stream:
            from envgen.engine import process

            argv = [_docker(), "start", "--attach", *(["--interactive"] if stdin else []), container_id]
            done = process.run(argv, stdin=stdin or None, env=self.endpoint.environment, timeout=timeout, check=False)
            return ExecResult(done.code, done.stdout, done.stderr)
        stream = self._api.stream(f"/containers/{container_id}/attach", query, None)
        try:
            self._api.request("POST", f"/containers/{container_id}/start").check(what)
        except BaseException:
            stream.close()
            raise
        output = talk(stream, stdin, timeout, what, lambda: None)
        state = self._api.request("POST", f"/containers/{container_id}/wait").check(what)
        return ExecResult(int(state["StatusCode"]), output.stdout, output.stderr)

    def _remove(self, container_id: str) -> None:
        # Anonymous volumes go with it; a failure here must not hide the error that brought us here.
        with contextlib.suppress(EngineError):
            self._api.request("DELETE", f"/containers/{container_id}", {"force": "1", "v": "1"})

    def leftovers(self) -> tuple[Leftover, ...]:
        query = {"all": "1", "filters": json.dumps({"label": [THROWAWAY]})}
        rows = self._api.request("GET", "/containers/json", query).check("containers")
        found = (judge(row, time.time()) for row in rows)
        return tuple(sorted((one for one in found if one), key=lambda one: one.created))

    def remove_leftovers(self, found: Sequence[Leftover]) -> tuple[tuple[Leftover, str], ...]:
        stayed = []
        for one in found:
            answer = self._api.request("DELETE", f"/containers/{quote(one.id)}", {"force": "1", "v": "1"})
            # 409: the engine is removing it already.
            if answer.status >= 400 and answer.status not in (404, 409):
                stayed.append((one, answer.message))
        return tuple(stayed)

    def _exec_by_program(
        self,
        container_id: str,
        argv: Sequence[str],
        variables: Sequence[str],
        stdin: bytes,
        user: str,
        workdir: str,
        timeout: float,
        kill: Callable[[], None],
    ) -> ExecResult:
        """By ``docker exec``, where the API's connection can't be taken over (TLS, ssh)."""
        from envgen.engine import process

        # Values by name only: an argv can be read by every user of this machine.
        values = dict(pair.split("=", 1) for pair in variables)
        words = [_docker(), "exec", *(["--interactive"] if stdin else [])]
        words += [f"--env={name}" for name in values]
        words += [f"--user={user}"] if user else []
        words += [f"--workdir={workdir}"] if workdir else []
        words += [container_id, *argv]
        environment = {**self.endpoint.environment, **values}
        try:
            done = process.run(words, stdin=stdin or None, env=environment, timeout=timeout, check=False)
        except process.ProcessTimeout:
            kill()
            raise
        return ExecResult(done.code, done.stdout, done.stderr)


def _throwaway(
    image: str,
    argv: Sequence[str],
    stdin: bool,
    mounts: Sequence[Mount],
    env: Mapping[str, str],
    network: str,
    memory: int,
) -> dict[str, Any]:
    """The request for a container that bypasses the image's entrypoint and health check."""
    return {
        "Image": image,
        "Entrypoint": [argv[0]],
        "Cmd": list(argv[1:]),
        "Env": [f"{name}={value}" for name, value in env.items()],
        "OpenStdin": stdin,
        "StdinOnce": stdin,
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {THROWAWAY: "1", CREATOR: str(this_process())},
        "HostConfig": {
            "NetworkMode": network,
            "Init": False,
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": PIDS,
            "Mounts": [
                {"Type": m.kind, "Source": m.source, "Target": m.target, "ReadOnly": m.read_only} for m in mounts
            ],
        },
    }


def _docker() -> str:
    import shutil

    program = shutil.which("docker")
    if not program:
        raise EngineError("the program `docker` is not on PATH, and this kind of endpoint needs it")
    return program
