"""Engines without a socket on this machine get one: OpenSSH forwards theirs, `docker system dial-stdio` speaks TLS.

Everything else (the SDK, buildx, Compose, `docker exec`) then talks to a socket. One connection for each address is
kept until envgen ends, however it ends; its folder is removed by the next run if this one was killed.
"""

from __future__ import annotations

import atexit
import contextlib
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
from urllib.parse import unquote, urlsplit

from envgen import files
from envgen.engine import process
from envgen.errors import EngineError

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
