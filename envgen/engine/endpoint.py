"""Where the Docker Engine answers, and where Docker's plugin programs are. Reads files and variables.

Calling ``docker-buildx`` itself rather than ``docker buildx`` saves 100 to 150 ms a call: ``docker`` starts every
plugin once more to ask what it offers.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from envgen import files
from envgen.engine import process
from envgen.errors import EngineError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
# Docker's own search path after the user's folder (cli/cli-plugins/manager).
SYSTEM_PLUGINS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
    "/opt/homebrew/lib/docker/cli-plugins",
)
_TLS = ("DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "HOME")
NAMES = {"buildx": "BuildKit's client (buildx)", "compose": "Docker Compose v2"}
# The first with what envgen asks of them: --provenance, and COMPOSE_DISABLE_ENV_FILE.
OLDEST = {"buildx": "0.10", "compose": "2.24"}


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine: ``unix:///...``, ``tcp://...``, ``ssh://...``, and who said so.

    ``secured``: what `docker` needs to reach it over TLS; None where there is no TLS.
    """

    host: str
    context: str = "default"
    said_by: str = "the default"
    secured: tuple[tuple[str, str], ...] | None = None

    @property
    def local(self) -> bool:
        """True where the engine is on this machine for certain: paths and ports mean the same to both."""
        return self.host.startswith("unix://")

    @property
    def forwarded(self) -> bool:
        """True where a program makes the connection (``forward.py``)."""
        return self.host.startswith("ssh://") or self.secured is not None

    @property
    def url(self) -> str:
        """What the SDK and Docker's programs are given: a socket or a bare TCP port. Connects where need be."""
        if not self.forwarded:
            return self.host
        return f"unix://{forward(self.host, dict(self.secured or ())).path}"

    @property
    def environment(self) -> dict[str, str]:
        """What a Docker program must be given to reach the same engine."""
        return {"DOCKER_HOST": self.url} | ({"DOCKER_TLS_VERIFY": "", "DOCKER_TLS": ""} if self.secured else {})


def config_dir(environ: Mapping[str, str]) -> Path:
    """Docker's configuration folder."""
    named = environ.get("DOCKER_CONFIG")
    return Path(named) if named else Path(environ.get("HOME") or Path.home()) / ".docker"


def find_endpoint(environ: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that ``docker`` itself would use: DOCKER_HOST, DOCKER_CONTEXT, the current context, the default."""
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST"):
        host = _spelled_out(host)
        wanted = environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS")
        named = {"DOCKER_HOST": host} | {name: environ[name] for name in _TLS if environ.get(name)}
        return Endpoint(host, "default", "DOCKER_HOST", tuple(named.items()) if wanted and _is_tcp(host) else None)
    folder = config_dir(environ)
    name, said_by = environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        name, said_by = str(_read_json(folder / "config.json").get("currentContext") or ""), "the current context"
    if name in ("", "default"):
        return Endpoint(DEFAULT_SOCKET)
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    endpoints = _read_json(meta).get("Endpoints")
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    if not host:
        raise EngineError(
            f"the Docker context {name!r} (from {said_by}) is not defined",
            hint="`docker context ls` shows those that are; `docker context use default` goes back",
        )
    address = _spelled_out(str(host))
    material = folder / "contexts" / "tls" / meta.parent.name / "docker"
    by_context = (("DOCKER_CONFIG", str(folder)), ("DOCKER_CONTEXT", name), ("DOCKER_HOST", ""))
    secured = _is_tcp(address) and (material.is_dir() or bool(docker and docker.get("SkipTLSVerify")))
    return Endpoint(address, name, f"the context {name!r}", by_context if secured else None)


def find_plugin(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """The program of a Docker plugin (``buildx``, ``compose``), searched where ``docker`` searches it."""
    environ = os.environ if environ is None else environ
    folder = config_dir(environ)
    extra = _read_json(folder / "config.json").get("cliPluginsExtraDirs")
    named = [str(path) for path in extra] if isinstance(extra, list) else []
    for place in (*named, str(folder / "cli-plugins"), *SYSTEM_PLUGINS):
        program = Path(place) / f"docker-{name}"
        if os.access(program, os.X_OK) and program.is_file():  # in this order: `is_file` raises in a folder of others
            return program
    return None


def plugin_argv(name: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """How to start a plugin; ``Endpoint.environment`` tells it where the engine is."""
    environ = os.environ if environ is None else environ
    program = find_plugin(name, environ)
    if program is None:
        raise _missing_plugin(name, environ.get("PATH"))
    return [str(program)]


def plugin_version(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The version of a Docker plugin, such as ``0.29.1``; "" where it gives none. EngineError where it is absent."""
    done = process.run([*plugin_argv(name, environ), "version"], timeout=20, check=False)
    found = re.search(r"\bv?(\d+\.\d+(?:\.\d+)?)", done.stdout.decode(errors="replace"))
    return found[1] if found else ""


def outdated(name: str, version: str) -> bool:
    """True where a plugin of that version lacks what envgen needs. One that gives no version is taken as it is."""
    return bool(version) and _numbers(version) < _numbers(OLDEST[name])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def demand_plugin(name: str) -> None:
    """EngineError where a Docker plugin is absent or too old."""
    if outdated(name, version := plugin_version(name)):
        raise EngineError(
            f"{NAMES[name]} is {version} here, and envgen needs {OLDEST[name]} or newer",
            hint=f"install a newer docker-{name}-plugin (Debian: docker-{name}), or put a newer docker-{name} into "
            "~/.docker/cli-plugins",
        )


def _missing_plugin(name: str, path: str | None) -> EngineError:
    if name == "compose" and shutil.which("docker-compose", path=path):
        return EngineError(
            "only the old `docker-compose` (v1) is here, and envgen needs Docker Compose v2",
            hint="install the package docker-compose-plugin (Debian: docker-compose)",
        )
    return EngineError(
        f"Docker has no {name} plugin here: {NAMES.get(name, name)} is needed",
        hint=f"install the package docker-{name}-plugin (Debian: docker-{name}), or put docker-{name} "
        "into ~/.docker/cli-plugins",
    )


def _spelled_out(host: str) -> str:
    """A bare path is a socket, as the Docker programs read it. EngineError for an address of another kind."""
    host = f"unix://{host}" if host.startswith("/") else host
    if not host.startswith(("unix://", "tcp://", "ssh://", "http://", "https://")):
        raise EngineError(
            f"the engine's address {host!r} is of a kind that envgen cannot use",
            hint="it takes unix:///path, tcp://host:port and ssh://user@host",
        )
    return host


def _is_tcp(host: str) -> bool:
    return host.startswith(("tcp://", "https://"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


# Engines without a socket on this machine get one: OpenSSH forwards theirs, `docker system dial-stdio` speaks TLS.

REMOTE_SOCKET = "/var/run/docker.sock"
PATIENCE = 15.0  # seconds to log in; ConnectTimeout below ends sooner where nothing answers
_OPTIONS = (
    "BatchMode=yes",  # never asks: a password prompt would wait for ever
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "StreamLocalBindMask=0177",
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
        """EngineError for what ssh would read as an option, and for passwords."""
        try:
            parts = urlsplit(text)
            port = parts.port or 0
        except ValueError:
            raise _bad(text, "is not an address") from None
        host, user = unquote(parts.hostname or ""), unquote(parts.username or "")
        # urlsplit makes host names lower case; the names in ~/.ssh/config are not.
        written = re.search(re.escape(host), text, re.IGNORECASE) if host else None
        host = written[0] if written else host
        if not host:
            raise _bad(text, "names no host")
        if parts.password is not None:
            raise EngineError("a password in an ssh:// address is not supported", hint="use a key and ssh-agent")
        for what, value in (("host", host), ("user", user)):
            if value.startswith("-") or re.search(r"[\x00-\x20\x7f]", value):
                raise _bad(text, f"has a {what} that ssh would not read as one: {value!r}")
        path = unquote(parts.path) if parts.path not in ("", "/") else REMOTE_SOCKET
        if parts.query or parts.fragment or re.search(r"[\x00-\x1f\x7f:]", path):
            raise _bad(text, "has more than a user, a host, a port and the path of a socket")
        return cls(host, user, port, path)

    def argv(self, forwarding: str) -> list[str]:
        """OpenSSH with one forwarding (LOCAL:REMOTE). ~/.ssh/config, the agent and known_hosts apply."""
        words = ["ssh", "-nNT", *(word for option in _OPTIONS for word in ("-o", option))]
        words += ["-L", forwarding]
        words += ["-p", str(self.port)] if self.port else []
        words += ["-l", self.user] if self.user else []
        return [*words, "--", self.host]


def _bad(text: str, why: str) -> EngineError:
    return EngineError(f"the engine's address {text!r} {why}", hint="write ssh://user@host or ssh://host:port")


class Forward:
    """A socket of this machine that leads to another engine. ``words`` is what its program last wrote to stderr."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        # Not the user's TMPDIR, which may be too long: a socket's path has 107 bytes.
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        base = Path(runtime) if runtime.startswith("/") and len(runtime) < 60 else files.SHORT
        self._folder = files.Scratch("engine", base if os.access(base, os.W_OK) else None)
        self.path = f"{self._folder.name}/s"
        self._words: list[str] = []
        atexit.register(self.close)

    @property
    def words(self) -> str:
        return "; ".join(self._words[-3:])

    @property
    def alive(self) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """End the connection and remove its socket."""
        self._folder.cleanup()

    def _listen(self, child: process.Child) -> None:
        """Keep the end of a program's stderr; also waits for its end."""
        assert child.stderr
        with contextlib.suppress(OSError, ValueError):
            while line := child.stderr.readline(4096):
                text = line.decode(errors="replace").strip()
                text = "".join(c if c.isprintable() else "?" for c in text)
                if text:
                    self._words = [*self._words[-9:], text]
        child.wait()


class SshForward(Forward):
    """One ssh connection: to the engine's socket, or to ``remote``, a HOST:PORT as that machine sees it."""

    def __init__(self, address: str, remote: str = "") -> None:
        where = SshAddress.parse(address)
        super().__init__(address)
        self.port = _free_port() if remote else 0
        forwarding = f"127.0.0.1:{self.port}:{remote}" if remote else f"{self.path}:{where.socket}"
        self._host = where.host
        self._socket = where.socket
        self._child: process.Child | None = None
        self._failure: EngineError | None = None
        self._started = threading.Event()
        # A child that dies with its parent dies with the thread that started it: this one lives as long as ssh does.
        threading.Thread(target=self._run, args=(where.argv(forwarding),), daemon=True).start()
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    def _run(self, argv: Sequence[str]) -> None:
        try:
            self._child = process.start(argv, stderr=process.PIPE)
        except EngineError as error:
            self._failure = error
        finally:
            self._started.set()
        if self._child:
            self._listen(self._child)

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE
        self._started.wait(PATIENCE)
        if self._failure:
            raise EngineError(
                f"the engine at {self.shown} is reached by ssh: {self._failure.problems[0].message}",
                hint="install OpenSSH's client",
            )
        while not (_listens(self.port) if self.port else Path(self.path).exists()):
            if not self.alive:
                time.sleep(0.05)  # the last of its words
                raise EngineError(
                    f"ssh cannot connect to {self._host}: {self.words or 'it ended without a word'}",
                    hint=f"try `ssh {self._host}`: it must log in without a password or a question",
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"ssh has not connected to {self._host} within {PATIENCE:g} s"
                    + (f": {self.words}" * bool(self.words)),
                    hint=f"try `ssh {self._host}`",
                )
            time.sleep(0.02)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def trouble(self) -> EngineError:
        """Why the engine behind it does not answer."""
        if not self.alive:
            return EngineError(f"the ssh connection to {self._host} ended: {self.words or 'ssh gave no reason'}")
        return EngineError(
            f"ssh reaches {self._host}, but the Docker Engine's socket {self._socket} there does not answer"
            + (f": {self.words}" if self.words else ""),
            hint=f"does `ssh {self._host} docker version` work? "
            f"A socket elsewhere: ssh://{self._host}/run/user/1000/docker.sock",
        )

    def close(self) -> None:
        if self._child and self._child.poll() is None:
            self._child.terminate()
            with contextlib.suppress(process.Late):
                self._child.wait(2)
        super().close()


class TlsForward(Forward):
    """A listening socket; each connection to it is one `docker system dial-stdio`, which knows contexts and TLS."""

    def __init__(self, address: str, env: Mapping[str, str]) -> None:
        if not shutil.which("docker"):
            raise EngineError(
                f"the engine at {address} is reached over TLS by the program `docker`, which is not on PATH",
                hint="install Docker's command line (docker-ce-cli)",
            )
        super().__init__(address)
        self._env = dict(env)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(32)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EngineError):
            while True:
                client, _ = self._server.accept()
                with client:
                    child = process.start(
                        ["docker", "system", "dial-stdio"], env=self._env,
                        stdin=client, stdout=client, stderr=process.PIPE,
                    )  # fmt: skip
                threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    @property
    def alive(self) -> bool:
        return True

    def trouble(self) -> EngineError:
        """Why the engine behind it does not answer."""
        return EngineError(
            f"cannot reach the Docker Engine at {self.shown}: {self.words or 'it closed the connection'}",
            hint="does `docker version` work? The certificates are those of DOCKER_CERT_PATH or of the context",
        )

    def close(self) -> None:
        self._server.close()
        super().close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


_forwards: dict[tuple[str, tuple[tuple[str, str], ...]], SshForward | TlsForward] = {}
_locks: defaultdict[object, threading.Lock] = defaultdict(threading.Lock)  # one that does not answer delays no other


def forward(address: str, env: Mapping[str, str] | None = None) -> SshForward | TlsForward:
    """The connection to ``address``, made when first asked for; ``env`` is what `docker` needs to find it."""
    key = (address, tuple(sorted((env or {}).items())))
    with _locks[key]:
        found = _forwards.get(key)
        if found is None or not found.alive:
            found = SshForward(address) if address.startswith("ssh://") else TlsForward(address, env or {})
            _forwards[key] = found
        return found


def forward_port(address: str, remote: str) -> int:
    """A port of this machine's 127.0.0.1 that leads to ``remote`` (HOST:PORT) on the machine of an ssh:// engine."""
    key = (address, ((remote, ""),))
    with _locks[key]:
        found = _forwards.get(key)
        if not isinstance(found, SshForward) or not found.alive:
            found = _forwards[key] = SshForward(address, remote)
        return found.port


def existing(address: str, env: Mapping[str, str] | None = None) -> SshForward | TlsForward | None:
    """The connection to ``address`` as it is, alive or not."""
    return _forwards.get((address, tuple(sorted((env or {}).items()))))
