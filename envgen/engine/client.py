"""The Docker Engine, by the Docker SDK: its requests and their answers."""

from __future__ import annotations

import io
import os
import re
import signal
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

from envgen.binding import JsonDict, JsonObject
from envgen.engine import api, log, process, values
from envgen.engine.endpoint import Endpoint, docker_program, find_endpoint
from envgen.engine.host import THROWAWAY, Leftover, judge
from envgen.errors import EngineError

# Marks the processes of an exec, so that all of them can be found and ended when its time is up.
_MARK = "ENVGEN_EXEC"
_KILLER = 'for p in /proc/[0-9]*; do if grep -qs "$1" "$p/environ"; then kill -9 "${p#/proc/}" 2>/dev/null; fi; done; true'
# Variables that would change the docker CLI itself; none of them is a secret. All others reach it
# by their names.
_OF_DOCKER = re.compile(r"PATH$|HOME$|TMPDIR$|DOCKER_|LD_|GO|XDG_|SSH_")
_REFUSED = re.compile(rb"(?:docker: )?(?:Error response from daemon: )?(.+)")
_STARTS = (
    b"docker: Error",
    b"Error response from daemon:",
    b"Cannot connect to the Docker",
    b"error during connect:",
)
FILE = 64 << 10  # bytes read of a container's file
LOG_TIME = 30  # seconds to read a log; the rest is left out


class Engine:
    """A reachable Docker Engine. All methods raise EngineError when the engine itself fails."""

    def __init__(self, endpoint: Endpoint, version: JsonObject) -> None:
        """``version``: its answer to ``GET /version``."""
        self.endpoint = endpoint
        self._version = version
        from envgen.engine import sdk  # a tenth of a second: not for `--help`

        self._wrap_errors = partial(
            sdk.wrap_errors, endpoint
        )  # what goes wrong in a question becomes an EngineError
        self._absent = suppress(*sdk.ABSENT)
        # The engine's own API version: newer engines refuse the SDK's default.
        api_version = str(version.get("ApiVersion") or "")
        # The SDK has no types for some of its methods.
        self._api: Any = sdk.EngineSession(endpoint, api_version)
        self._work: Any = sdk.EngineSession(endpoint, api_version, api.WORK)  # for slow requests
        self._info: values.EngineInfo | None = None

    def info(self) -> values.EngineInfo:
        """The engine's own facts; asked once."""
        if self._info is None:
            with self._wrap_errors("info"):
                self._info = values.info_of(self._api.info(), self._version, self.endpoint.host)
        return self._info

    def image(self, name: str) -> values.Image | None:
        """The image of that name or id; None if it isn't there. Never pulls."""
        with self._wrap_errors(f"image {name}"), self._absent:
            return values.image_of(self._api.inspect_image(name))
        return None

    def steps(self, image: str) -> list[str]:
        """The instructions that made an image, the last one first."""
        with self._wrap_errors(f"image {image}"), self._absent:
            return [str(step.get("CreatedBy")) for step in self._api.history(image)]
        return []

    def container(self, name: str) -> values.Container | None:
        """The container of that name or id; None if it isn't there."""
        document = self.inspect(name)
        with self._wrap_errors(f"container {name}"):
            return values.container_of(document) if document is not None else None

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[values.Container, ...]:
        """Containers, of a Compose project and service if named; only running ones unless ``all``.

        One-off containers (`docker compose run`) are in a project, but are not containers of a
        service.
        """
        # The list has neither health nor environment; a container may be gone by now.
        found = self.inspected(self.listed(project, service, all))
        return tuple(one for one in found if service is None or not one.one_off)

    def listed(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[values.ContainerRow, ...]:
        """The same as the engine lists them, in one request."""
        labels = []
        if project is not None:
            labels.append(f"{values.COMPOSE_PROJECT}={project}")
        if service is not None:
            labels.append(f"{values.COMPOSE_SERVICE}={service}")
        filters = {"label": labels} if labels else {}
        with self._wrap_errors("containers"):
            rows = self._api.containers(all=all, filters=filters)
            return tuple(values.row_of(row) for row in rows)

    def inspected(self, rows: Iterable[values.ContainerRow]) -> tuple[values.Container, ...]:
        """The containers of ``rows`` that are still there, by their names."""
        found = []
        for row in rows:
            container = self.container(row.id)
            if container is not None:
                found.append(container)
        return tuple(sorted(found, key=lambda one: one.name))

    def inspect(self, name: str) -> JsonObject | None:
        """The engine's whole document about a container; None if it isn't there."""
        with self._wrap_errors(f"container {name}"), self._absent:
            document: JsonObject = self._api.inspect_container(name)
            return document
        return None

    def logs(
        self,
        container_id: str,
        *,
        tail: int | None = 30,
        since: str = "",
        until: str = "",
        timestamps: bool = False,
        seconds: float = LOG_TIME,
    ) -> str:
        """The last lines (None: all) that a container wrote, stdout and stderr together, in the
        order they came.

        ``since`` and ``until``: seconds, a dot, nanoseconds, as the engine writes them. Reading
        ends after ``seconds``.
        """
        query = {
            "stdout": 1,
            "stderr": 1,
            "tail": "all" if tail is None else tail,
            "since": since or None,
            "until": until or None,
            "timestamps": int(timestamps),
        }
        with self._wrap_errors(f"log of {container_id[:12]}"):
            url = self._api._url("/containers/{0}/logs", container_id)
            response = self._api.get(url, params=query, stream=True)
            with closing(response):
                if response.status_code >= 400:
                    return ""
                tail_of_log = log.Tail(values.LOG_LIMIT)
                deadline = time.monotonic() + seconds
                for data in response.iter_content(None):
                    tail_of_log.feed(data)
                    # The engine also sends what is written meanwhile, endlessly if that is faster
                    # than we read.
                    if time.monotonic() > deadline or (
                        tail is not None and tail_of_log.lines >= tail
                    ):
                        break
                return tail_of_log.text()

    def read_file(self, container: str, path: str) -> bytes:
        """The first 64 KiB of a file of a container, running or not; b"" where there is none."""
        content = bytearray()
        with self._wrap_errors(f"{path} of {container[:12]}"), self._absent:
            stream, _ = self._api.get_archive(container, path)
            for chunk in stream:
                content += chunk
                if len(content) > FILE:
                    break
        with (
            suppress(tarfile.TarError, KeyError),
            tarfile.open(fileobj=io.BytesIO(content)) as archive,
        ):
            first = archive.next()
            file = archive.extractfile(first) if first else None
            return file.read(FILE) if file else b""
        return b""

    def processes(self, container: str) -> list[values.ProcessState]:
        """The processes of a running container, as `docker top` shows them."""
        with self._wrap_errors(f"processes of container {container[:12]}"):
            rows = self._api.top(container, ps_args="-eo pid,ppid,stat,rss,args")["Processes"]
            return [values.process_of(row) for row in rows]

    def volume(self, name: str) -> str | None:
        """The folder of a named volume on the engine's machine; None if there is no such volume."""
        with self._wrap_errors(f"volume {name}"), self._absent:
            return str(self._api.inspect_volume(name)["Mountpoint"])
        return None

    def volume_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a named volume; {} if there is no such volume."""
        with self._wrap_errors(f"volume {name}"), self._absent:
            return values.texts(self._api.inspect_volume(name).get("Labels"))
        return {}

    def create_volume(
        self,
        name: str,
        labels: Mapping[str, str],
        driver: str = "",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Create an empty volume, unless there is one of that name. ``options``: the driver's."""
        with self._wrap_errors(f"volume {name}"):
            self._work.create_volume(
                name, driver or None, dict(options or {}) or None, dict(labels)
            )

    def volumes(self, text: str = "", *, project: str = "") -> dict[str, str]:
        """The sorted names of volumes, and when each was created: those with ``text`` in the name,
        or those of a Compose project.
        """
        wanted = {"name": text}
        if project:
            wanted = {"label": f"{values.COMPOSE_PROJECT}={project}"}
        made = {}
        with self._wrap_errors("volumes"):
            for row in self._api.volumes(filters=wanted)["Volumes"] or ():
                made[str(row["Name"])] = str(row.get("CreatedAt") or "")
        return dict(sorted(made.items()))

    def images(self, label: str) -> tuple[values.Image, ...]:
        """Images that carry ``label`` (KEY or KEY=VALUE), oldest first."""
        images = []
        with self._wrap_errors("images"):
            for row in self._api.images(filters={"label": [label]}):
                image = self.image(str(row["Id"]))
                if image is not None:
                    images.append(image)
        return tuple(sorted(images, key=lambda image: image.created))

    def disk(self) -> tuple[dict[str, int], int]:
        """The bytes that each image shares with no other, by ID, those of each volume, by name, and
        those of the build cache that nothing uses.
        """
        with self._wrap_errors("disk usage"):
            used = self._api.df()
        alone = {}
        for image in used["Images"] or ():
            alone[str(image["Id"])] = image["Size"] - image["SharedSize"]
        for volume in used.get("Volumes") or ():
            size = (volume.get("UsageData") or {}).get("Size", -1)
            alone[str(volume["Name"])] = max(0, int(size))
        cached = 0
        for record in used.get("BuildCache") or ():
            if not (record["InUse"] or record["Shared"]):
                cached += record["Size"]
        return alone, cached

    def _removed(self, remove: Callable[[], object]) -> str:
        """Calls ``remove``; returns the reason where it fails, else ""."""
        try:
            with self._wrap_errors(), self._absent:
                remove()
        except EngineError as error:
            return "" if "already in progress" in str(error) else error.message
        return ""

    def tag(self, image_id: str, name: str) -> None:
        """Give an image another name, which another image may have had."""
        with self._wrap_errors(f"image {name}"):
            repository, _, tag = name.rpartition(":")
            self._api.tag(image_id, repository, tag, force=True)

    def remove_image(self, image_id: str) -> str:
        """Remove an image that nothing uses, or one of its names. Returns the reason where it
        stays, else "".
        """
        return self._removed(lambda: self._work.remove_image(image_id))

    def remove_container(self, name: str) -> str:
        """Remove a container, running or not, with its anonymous volumes. Returns the reason if it
        stays, else "".
        """
        return self._removed(lambda: self._work.remove_container(name, v=True, force=True))

    def stop_and_remove(self, container_id: str) -> bool:
        """Stop a container as `docker stop` does, within its own time, and remove it. False where
        there is none.
        """
        with self._wrap_errors(f"container {container_id[:12]}"), self._absent:
            self._work.stop(container_id)
            self._work.remove_container(container_id, force=True)
            return True
        return False

    def remove_networks(self, project: str) -> None:
        """Remove the networks of a Compose project that no container uses."""
        with self._wrap_errors("networks"):
            networks = self._api.networks(
                filters={"label": [f"{values.COMPOSE_PROJECT}={project}"]}
            )
        for network in networks:
            self._removed(partial(self._work.remove_network, str(network["Id"])))

    def remove_volume(self, name: str) -> None:
        """Delete a volume with its content. EngineError while any container, running or not, has it
        mounted.
        """
        with self._wrap_errors(f"volume {name}"), self._absent:
            self._work.remove_volume(name)

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
        hold: bool = False,
        on_line: Callable[[str], None] | None = None,
    ) -> values.ExecResult:
        """Run a program in a running container. EngineError after ``timeout`` (it is killed) or for
        too much output.

        ``hold``: keep its stdin open until it ends, so that it can see that envgen was killed.
        ``on_line`` gets each line as it is written.
        """
        mark = os.urandom(16).hex()
        words = ["exec", f"--user={user}"]
        place = [f"--workdir={workdir}"]
        if stdin:
            place.append("--interactive")
        passed = {}  # by the CLI's own environment
        for name, value in {_MARK: mark, **(env or {})}.items():
            if _OF_DOCKER.match(name):
                place += ["--env", f"{name}={value}"]
            else:
                place += ["--env", name]
                passed[name] = value

        def kill() -> None:
            killer = [container_id, "sh", "-c", _KILLER, "sh", f"{_MARK}={mark}"]
            self._talk([*words, *killer], b"", 10, "", lambda: None)  # which nothing kills

        with process.terminable():
            return self._talk(
                [*words, *place, container_id, *argv],
                stdin,
                timeout,
                f"`{argv[0]}` in container {container_id[:12]}",
                kill,
                env=passed,
                hold=hold,
                on_line=on_line,
            )

    def _talk(
        self,
        words: Sequence[str],
        stdin: bytes,
        timeout: float,
        what: str,
        kill: Callable[[], object],
        **more: Any,
    ) -> values.ExecResult:
        """A program of the docker CLI that speaks for a program in a container. On every error that
        one is ended.
        """
        more["env"] = {**self.endpoint.environment, **more.get("env", {})}
        try:
            done = process.run(
                [docker_program(), *words],
                stdin=stdin,
                timeout=timeout,
                check=False,
                ending=signal.SIGKILL,
                limit=values.OUTPUT_LIMIT,
                **more,
            )
        except BaseException as error:
            with suppress(EngineError, OSError):
                kill()
            if isinstance(error, process.ProcessTimeout):
                raise EngineError(f"{what} did not end within {timeout:g} s") from None
            if isinstance(error, process.OutputTooLong):
                limit = values.OUTPUT_LIMIT >> 20
                raise EngineError(f"{what} wrote more than {limit} MiB") from None
            raise
        # Its own errors, and no program's: `docker` has no other sign of them.
        if done.code in (1, 125, 126, 127) and not done.stdout and done.stderr.startswith(_STARTS):
            message = _REFUSED.match(done.stderr)
            if message:
                raise EngineError(f"{what}: {message[1].decode(errors='replace')}")
        return done

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = 60,
        hold: bool = False,
        on_line: Callable[[str], None] | None = None,
        **container: Any,
    ) -> values.ExecResult:
        """Run a program in a temporary container that is always removed. ``container``: as in
        ``_temporary``.

        ``on_line`` gets each line as it is written.
        """
        what = f"`{argv[0]}` in a container of {image}"
        body = self._temporary(image, argv, bool(stdin), **container)
        with self._created(body, what) as container_id:
            words = ["start", "--attach"]
            if stdin:
                words.append("--interactive")
            remove = partial(self._remove_and_wait, container_id)
            return self._talk(
                [*words, container_id], stdin, timeout, what, remove, hold=hold, on_line=on_line
            )

    @contextmanager
    def _created(self, body: JsonObject, what: str) -> Iterator[str]:
        """A temporary container, not started yet, which is always removed."""
        with process.terminable():
            with self._wrap_errors(what):
                container_id = str(self._work.create_container_from_config(body)["Id"])
            try:
                yield container_id
            finally:
                # A failure here must not hide an earlier error.
                with suppress(EngineError, OSError):
                    self._remove_and_wait(container_id)

    def _temporary(
        self,
        image: str,
        argv: Sequence[str],
        stdin: bool,
        *,
        mounts: Sequence[values.ContainerMount] = (),
        env: Mapping[str, str] | None = None,
        user: str = "",
        network: str = "none",
        memory: int = values.MEMORY,
        ulimits: Mapping[str, tuple[int, int]] | None = None,
        gpus: Sequence[JsonObject] = (),
        devices: Sequence[str] = (),
    ) -> JsonDict:
        """The request for a container without the image's entrypoint and health check.

        It gets ``memory`` bytes, no swap, at most ``PIDS`` processes, and ``ulimits`` (soft, hard).
        """
        host = {
            "AutoRemove": True,
            "NetworkMode": network,
            "Init": False,
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": values.PIDS,
            "DeviceRequests": [values.device_request(one) for one in gpus],
            "Devices": [
                {"PathOnHost": it, "PathInContainer": it, "CgroupPermissions": "rwm"}
                for it in devices
            ],
            "Ulimits": [
                {"Name": name, "Soft": at, "Hard": most}
                for name, (at, most) in (ulimits or {}).items()
            ],
            "Mounts": [
                {"Type": m.kind, "Source": m.source, "Target": m.target, "ReadOnly": m.read_only}
                for m in mounts
            ],
        }
        if user.partition(":")[0] not in ("", "0"):
            # As a service has it: folders of the image belong to root's group.
            host["GroupAdd"] = ["0"]
        return {
            "Image": image,
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "Env": [f"{name}={value}" for name, value in (env or {}).items()],
            "User": user,
            **dict.fromkeys(("OpenStdin", "StdinOnce", "AttachStdin"), stdin),
            **dict.fromkeys(("AttachStdout", "AttachStderr"), True),
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {THROWAWAY: "1"},
            "HostConfig": host,
        }

    def _remove_and_wait(self, container_id: str) -> None:
        """Remove a container, and wait for it: while the engine removes it, its volumes are in use."""
        for _ in range(50):
            try:
                self._api.remove_container(container_id, v=True, force=True)
            except OSError as error:
                status = getattr(error, "status_code", 0)  # of the SDK's APIError
                if status == 404:
                    return
                if status != 409:  # being removed
                    raise
            time.sleep(0.1)

    def leftovers(self) -> tuple[Leftover, ...]:
        """Temporary containers that a killed envgen left behind, oldest first."""
        with self._wrap_errors("containers"):
            rows = self._api.containers(all=True, filters={"label": [THROWAWAY]})
            leftovers = (leftover for row in rows if (leftover := judge(row, time.time())))
            return tuple(sorted(leftovers, key=lambda leftover: leftover.created))


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """The engine that ``docker`` itself would use. EngineError: absent, stopped, forbidden, too
    old, not an engine.
    """
    from envgen.engine import sdk

    endpoint = find_endpoint(environ)
    version = sdk.greet(endpoint)
    if not isinstance(version, dict):
        raise EngineError(f"what answers at {endpoint.host} is not a Docker Engine")
    if reason := values.too_old(version):
        raise EngineError(
            reason, hint="install a newer one: https://docs.docker.com/engine/install/"
        )
    return Engine(endpoint, version)
