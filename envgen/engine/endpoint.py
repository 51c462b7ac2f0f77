"""The address of the Docker Engine, and Docker's plugin programs. Reads files and variables.

Calling ``docker-buildx`` rather than ``docker buildx`` saves 100 to 150 ms per call, in which
``docker`` starts every plugin to read its description.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from envgen import files
from envgen.binding import JsonDict
from envgen.engine import process
from envgen.errors import EngineError
from envgen.redact import without_login

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
SYSTEM_PLUGINS: Sequence[str] = _DATA["plugins"]


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine (``unix:///...``, ``tcp://...``, ``ssh://...``) and its origin."""

    host: str
    chosen_by: str = "the default"

    @property
    def local(self) -> bool:
        """True where the engine is certainly on this machine: paths and ports are the same for
        both.
        """
        return self.host.startswith("unix://")

    @property
    def url(self) -> str:
        """The address for envgen and Docker's programs: a socket or a TCP port. Connects to an
        ssh:// engine first.
        """
        return f"unix://{forward(self.host).path}" if self.host.startswith("ssh://") else self.host

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a Docker program reaches the same engine."""
        return {"DOCKER_HOST": self.url}


def config_dir(environ: Mapping[str, str]) -> Path:
    """Docker's configuration folder."""
    named = environ.get("DOCKER_CONFIG")
    return Path(named) if named else Path(environ.get("HOME") or Path.home()) / ".docker"


def find_endpoint(environ: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that ``docker`` itself would use: DOCKER_HOST, DOCKER_CONTEXT, the current
    context, the default.
    """
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST"):
        tls = environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS")
        return Endpoint(_checked(host, bool(tls)), "DOCKER_HOST")
    folder = config_dir(environ)
    name = environ.get("DOCKER_CONTEXT", "")
    chosen_by = "DOCKER_CONTEXT"
    if not name:
        name = str(_read_json(folder / "config.json").get("currentContext") or "")
        chosen_by = "the current context"
    if name in ("", "default"):
        return Endpoint(DEFAULT_SOCKET)
    contexts = folder / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    try:
        host = str(_read_json(contexts / "meta" / key / "meta.json")["Endpoints"]["docker"]["Host"])
    except (KeyError, TypeError):
        raise EngineError(
            f"the Docker context {name!r} (from {chosen_by}) is not defined",
            hint="`docker context ls` lists all; `docker context use default` goes back",
            command="docker context ls",
        ) from None
    return Endpoint(
        _checked(host, (contexts / "tls" / key / "docker").is_dir()), f"the context {name!r}"
    )


def _checked(host: str, tls: bool) -> str:
    """The address; a bare path is a socket, as for Docker. EngineError for an address of another
    kind.
    """
    host = f"unix://{host}" if host.startswith("/") else host
    if not host.startswith(("unix://", "tcp://", "ssh://", "http://")):
        raise EngineError(
            f"envgen cannot use the engine's address {host!r}",
            hint="use unix:///path, tcp://host:port or ssh://user@host",
        )
    if tls and host.startswith("tcp://"):
        raise EngineError(
            f"the engine at {host} needs TLS, which envgen does not support",
            hint="use ssh: DOCKER_HOST=ssh://user@host, or a context with that address",
        )
    return host


def _read_json(path: Path) -> JsonDict:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def find_plugin(name: str) -> Path | None:
    """The program of a Docker plugin (``buildx``, ``compose``), by ``docker``'s own search path."""
    folder = config_dir(os.environ)
    extra = _read_json(folder / "config.json").get("cliPluginsExtraDirs")
    named = [str(path) for path in extra] if isinstance(extra, list) else []
    for place in (*named, str(folder / "cli-plugins"), *SYSTEM_PLUGINS):
        program = Path(place) / f"docker-{name}"
        if (
            os.access(program, os.X_OK) and program.is_file()
        ):  # in this order: `is_file` raises in another user's folder
            return program
    return None


def plugin_argv(name: str) -> list[str]:
    """The command of a plugin; ``Endpoint.environment`` has the engine's address."""
    if program := find_plugin(name):
        return [str(program)]
    raise EngineError(
        f"Docker's plugin {name} is not installed: envgen needs {_DATA['names'][name]}",
        hint=f"install the package docker-{name}-plugin (Debian: docker-{name}), or put docker-{name} "
        "in ~/.docker/cli-plugins",
    )


def plugin_version(name: str) -> str:
    """The version of a Docker plugin, such as ``0.29.1``; "" where it prints none. EngineError
    where it is missing.
    """
    done = process.run([*plugin_argv(name), "version"], timeout=20, check=False)
    match = re.search(r"\bv?(\d+\.\d+(?:\.\d+)?)", done.stdout.decode(errors="replace"))
    return match[1] if match else ""


def outdated(name: str, version: str) -> bool:
    """True where a plugin of that version is too old for envgen; "" counts as new."""
    oldest = _DATA["oldest"][name]
    installed, needed = (tuple(map(int, text.split("."))) for text in (version or "999", oldest))
    return installed < needed


def require_plugin(name: str) -> None:
    """EngineError where a Docker plugin is missing or too old."""
    if outdated(name, version := plugin_version(name)):
        raise EngineError(
            f"{_DATA['names'][name]} is {version}, and envgen needs {_DATA['oldest'][name]} or newer",
            hint=f"install a newer docker-{name}-plugin (Debian: docker-{name}), or put a newer docker-{name} into "
            "~/.docker/cli-plugins",
        )


def docker_program() -> str:
    """The program `docker`, for `exec` on a terminal and `pull` with the user's logins. EngineError
    without it.
    """
    program = shutil.which("docker")
    if program is None:
        raise EngineError(
            "the program `docker` is not on PATH",
            hint="install Docker's command line (docker-ce-cli)",
        )
    return program


# Engines behind ssh get a socket on this machine, which OpenSSH forwards: envgen, buildx, Compose
# and `docker exec` then use a socket. One connection per address is kept until envgen ends.

REMOTE_SOCKET = "/var/run/docker.sock"
PATIENCE = 15.0  # seconds to log in; ConnectTimeout below is shorter
RETRY_AFTER = 5.0  # seconds; a command may need a failed connection more than once


# No part begins with a dash, which ssh would take for an option; the host may be one of ~/.ssh/config.
_ADDRESS = re.compile(
    r"ssh://((?P<user>\w[\w.+-]*)@)?(?P<host>\w[\w.-]*|\[[0-9a-fA-F:]+\])(:(?P<port>[0-9]{1,5}))?"
    r"(?P<socket>/[^\x00-\x20\x7f:?#]+)?/?"
)


@dataclass(frozen=True)
class SshAddress:
    """``ssh://[user@]host[:port][/socket]``, as Docker writes it."""

    host: str
    user: str = ""
    port: int = 0
    socket: str = REMOTE_SOCKET

    @classmethod
    def parse(cls, text: str) -> SshAddress:
        """Raises EngineError, for what ssh would read as an option and for passwords, too."""
        match = _ADDRESS.fullmatch(text)
        port = int(match["port"] or 0) if match else 0
        if match is None or port > 65535:
            raise EngineError(
                f"the engine's address {without_login(text)!r} is none that ssh takes",
                hint="write ssh://user@host or ssh://host:port; ssh-agent has the key",
            )
        return cls(
            match["host"].strip("[]"), match["user"] or "", port, match["socket"] or REMOTE_SOCKET
        )

    def argv(self, forwarding: str) -> list[str]:
        """OpenSSH with one forwarding (LOCAL:REMOTE). ~/.ssh/config, the agent and known_hosts
        apply.

        It ends with its standard input, so it outlives no killed envgen.
        """
        return [*self.login, "-T", "-L", forwarding, "--", self.host, "cat"]

    @property
    def login(self) -> list[str]:
        """OpenSSH with its options, without the host."""
        words = ["ssh", *(word for option in _DATA["ssh"] for word in ("-o", option))]
        words += ["-p", str(self.port)] if self.port else []
        return words + (["-l", self.user] if self.user else [])


class Forward:
    """One ssh connection: to the engine's socket, or to ``remote``, a HOST:PORT on that machine."""

    def __init__(self, address: str, remote: str = "") -> None:
        self._where = SshAddress.parse(address)
        # Not the user's TMPDIR, which may be too long: a socket's path has 107 bytes.
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        base = Path(runtime) if runtime.startswith("/") and len(runtime) < 60 else files.SHORT
        self._folder = files.Scratch("engine", base if os.access(base, os.W_OK) else None)
        self.path = f"{self._folder.name}/s"
        self.port = _free_port() if remote else 0
        self._written: deque[str] = deque(maxlen=3)  # the last lines of ssh's stderr
        atexit.register(self.close)
        argv = self._where.argv(
            f"127.0.0.1:{self.port}:{remote}" if remote else f"{self.path}:{self._where.socket}"
        )
        self._child: process.Child | None = None
        try:
            self._child = process.start(argv)
        except EngineError as error:
            message = f"the engine at {address} needs ssh: {error.message}"
            raise EngineError(message, hint="install OpenSSH's client") from None
        threading.Thread(target=self._read, args=(self._child,), daemon=True).start()
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _read(self, child: process.Child) -> None:
        assert child.stderr
        with suppress(OSError, ValueError):
            while line := child.stderr.readline(4096):
                if text := line.decode(errors="replace").strip():
                    self._written.append("".join(c if c.isprintable() else "?" for c in text))
        child.wait()

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE
        host = self._where.host
        while not (_listens(self.port) if self.port else Path(self.path).exists()):
            if not self.alive:
                time.sleep(0.05)  # for its last output
                raise EngineError(
                    f"ssh cannot connect to {host}{self._output or ', and printed no reason'}",
                    hint=f"try `ssh {host}`: it must log in without a password or a question",
                    command=f"ssh {host}",
                )
            if time.monotonic() > deadline:
                message = f"ssh has not connected to {host} within {PATIENCE:g} s{self._output}"
                raise EngineError(message, hint=f"try `ssh {host}`", command=f"ssh {host}")
            time.sleep(0.02)

    @property
    def _output(self) -> str:
        return f": {'; '.join(self._written)}" if self._written else ""

    def error(self) -> EngineError:
        """The error for an engine behind it that does not answer."""
        host = self._where.host
        if not self.alive:
            return EngineError(
                f"the ssh connection to {host} ended{self._output or ', and ssh printed no reason'}"
            )
        return EngineError(
            f"ssh reaches {host}, but the Docker Engine's socket {self._where.socket} there does not answer"
            + self._output,
            hint=f"try `ssh {host} docker version`; a socket elsewhere: ssh://{host}/run/user/1000/docker.sock",
            command=f"ssh {host} docker version",
        )

    def close(self) -> None:
        """End the connection and remove its socket."""
        if self._child:
            process.stop(self._child, signal.SIGTERM)  # with its children, such as a ProxyCommand
            self._child = None
        self._folder.cleanup()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


forwards: dict[tuple[str, str], Forward] = {}
_failed: dict[tuple[str, str], tuple[float, EngineError]] = {}
_locks: defaultdict[object, threading.Lock] = defaultdict(
    threading.Lock
)  # a slow connection delays no other


def forward(address: str, remote: str = "") -> Forward:
    """The connection to an ssh:// engine, or to ``remote`` (HOST:PORT) on its machine; opened on
    first use.
    """
    key = (address, remote)
    with _locks[key]:
        if key not in forwards or not forwards[key].alive:
            when, error = _failed.get(key, (0.0, None))
            if error is not None and time.monotonic() - when < RETRY_AFTER:
                raise error
            try:
                forwards[key] = Forward(address, remote)
            except EngineError as failure:
                _failed[key] = time.monotonic(), failure
                raise
        return forwards[key]
