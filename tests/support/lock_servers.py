"""Servers for the lock's tests, all real and on loopback: Debian's docker-registry, git's own, and one that fails."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import Quiet, free_port, listens, serving, until


@contextlib.contextmanager
def registry(folder: Path, htpasswd: str = "") -> Iterator[str]:
    """A docker-registry; gives its host and port. ``htpasswd``: lines of users with bcrypt hashes."""
    if not shutil.which("docker-registry"):
        pytest.fail("this test needs a registry: apt-get install docker-registry", pytrace=False)
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    auth = ""
    if htpasswd:
        (folder / "htpasswd").write_text(htpasswd)
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}\n"
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\nlog: {{level: error}}\n{auth}"
    )
    child = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10)


@contextlib.contextmanager
def git_daemon(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """`git daemon` for all repositories below ``folder``; gives the address in front of their paths."""
    port = free_port()
    where = (f"--listen={host}", f"--port={port}", f"--base-path={folder}")
    child = subprocess.Popen(
        ["git", "daemon", "--reuseaddr", "--export-all", *where, "--enable=upload-pack", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: listens(port, host))
        yield f"git://{host}:{port}"
    finally:
        os.killpg(child.pid, signal.SIGKILL)  # with the servers of its connections, which ignore SIGTERM
        child.wait(10)


Answer = tuple[int, dict[str, str], bytes]


class Failing(http.server.ThreadingHTTPServer):
    """Gives the same answer to every request, or none: it hangs."""

    daemon_threads = True

    def __init__(self, answer: Answer | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.released = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(Quiet):
    server: Failing

    def do_GET(self) -> None:
        if self.server.answer is None:
            self.server.released.wait(20)
            return
        status, headers, body = self.server.answer
        self.reply(body, status, **headers)

    do_HEAD = do_GET


@contextlib.contextmanager
def failing(answer: Answer | None) -> Iterator[Failing]:
    """A server that misbehaves as told."""
    server = Failing(answer)
    with serving(server):
        try:
            yield server
        finally:
            server.released.set()


def put(
    host: str, path: str, body: bytes, kind: str, headers: dict[str, str] | None = None, method: str = "PUT"
) -> str:
    """One request of the distribution API; gives the answer's Location."""
    request = urllib.request.Request(
        path if path.startswith("http") else f"http://{host}/v2/{path}",
        body,
        {"Content-Type": kind, **(headers or {})},
        method=method,
    )
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers.get("Location", ""))


def push_image(host: str, name: str, tag: str, salt: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    """A manifest list of an amd64 and an arm64 image without layers; gives the digests that it must be locked to."""
    import hashlib

    def digest(body: bytes) -> str:
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    manifest_kind = "application/vnd.oci.image.manifest.v1+json"
    entries, found = [], {}
    for arch in ("amd64", "arm64"):
        about = {"architecture": arch, "os": "linux", "created": "2025-12-11T04:05:06Z"}
        inside = {"config": {"Env": [f"SALT={salt}"]}, "rootfs": {"type": "layers", "diff_ids": []}}
        config = json.dumps({**about, **inside}).encode()
        place = put(host, f"{name}/blobs/uploads/", b"", "application/octet-stream", headers, "POST")
        joined = f"{place}{'&' if '?' in place else '?'}digest={digest(config)}"
        put(host, joined, config, "application/octet-stream", headers)
        kind = "application/vnd.oci.image.config.v1+json"
        own = {"mediaType": kind, "size": len(config), "digest": digest(config)}
        shape = {"schemaVersion": 2, "mediaType": manifest_kind, "layers": [], "config": own}
        manifest = json.dumps(shape).encode()
        put(host, f"{name}/manifests/{digest(manifest)}", manifest, manifest_kind, headers)
        row = {"mediaType": manifest_kind, "size": len(manifest), "digest": digest(manifest)}
        entries.append({**row, "platform": {"os": "linux", "architecture": arch}})
        found[f"linux/{arch}"] = digest(manifest)
    kind = "application/vnd.oci.image.index.v1+json"
    index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).encode()
    put(host, f"{name}/manifests/{tag}", index, kind, headers)
    return {**found, "index": digest(index)}
