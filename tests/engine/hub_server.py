"""A STAND-IN for the Hugging Face Hub on loopback: repositories of a few small files, as huggingface_hub asks for them.

It can break a download off in the middle, refuse access, and count what was asked. It is not a proof for the real hub.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from local import Quiet, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def shard(size: int, name: str = "weight") -> bytes:
    """A safetensors file with one tensor of ``size`` bytes."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(i % 251 for i in range(size))


def model_files(size: int = 40_000) -> dict[str, bytes]:
    """A model of two shards with an index, and a second copy of the weights that nobody needs."""
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weights}).encode(),
        weights["a"]: shard(size, "a"),
        weights["b"]: shard(size + 1000, "b"),
        "original/model.safetensors": shard(size, "c"),
    }


@dataclass
class Hub:
    """What the hub has and how it behaves. ``cut``: requests for a file's bytes that break off, by name.

    ``rate``: bytes per second of one download; 0: no limit. ``others``: more repositories, at the same commit.
    """

    files: Mapping[str, bytes]
    repo: str = "acme/tiny"
    commit: str = COMMIT
    token: str = ""
    rate: int = 0
    others: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0


@contextmanager
def serve(hub: Hub, address: str = "0.0.0.0") -> Iterator[Hub]:
    """Serve on a free port until the block ends."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with serving(handler, address) as url:
        hub.port = int(url.rpartition(":")[2])
        yield hub


class _Handler(Quiet):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._json({"error": "gated"}, 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        for repo, files in {hub.repo: hub.files, **hub.others}.items():
            match = re.fullmatch(rf"/api/models/{re.escape(repo)}(?:/(revision|tree)/([^/]+))?(?:/.*)?", path)
            if match and match[2] not in (None, "main", hub.commit):
                return self._json({"error": "no revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
            if match:
                return self._json(_tree(files) if match[1] == "tree" else self._info(repo, files))
            match = re.fullmatch(rf"/{re.escape(repo)}/resolve/([^/]+)/(.+)", path)
            if match and match[2] in files:
                return self._file(match[2], files[match[2]], body)
        return self._json({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _info(self, repo: str, files: Mapping[str, bytes]) -> object:
        siblings = [{"rfilename": name, "size": len(data), "blobId": _sha(data)} for name, data in files.items()]
        names = {"_id": "1", "id": repo, "modelId": repo, "sha": self.hub.commit}
        flags = {"private": False, "disabled": False, "gated": False, "tags": [], "downloads": 0, "likes": 0}
        return {**names, **flags, "siblings": siblings}

    def _file(self, name: str, data: bytes, body: bool) -> None:
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start = int(wanted[1])
        part = data[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{_sha(data)}"')
        self.send_header("X-Repo-Commit", self.hub.commit)
        self.end_headers()
        if not body:
            return
        if self.hub.cut.get(name, 0) > 0:
            self.hub.cut[name] -= 1
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        rate = self.hub.rate
        piece = max(1, rate // 10) if rate else len(part) or 1
        for begin in range(0, len(part), piece):
            self.wfile.write(part[begin : begin + piece])
            if rate:
                time.sleep(0.1)

    def _json(self, document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.reply(json.dumps(document).encode(), status, **(headers or {}))


def _tree(files: Mapping[str, bytes]) -> object:
    return [{"type": "file", "path": name, "size": len(data), "oid": _sha(data)} for name, data in files.items()]


def _sha(data: bytes) -> str:
    """As the hub has it: git's hash of a small file, SHA-256 of a large one (LFS), which is more than 10 MB there."""
    if len(data) > 10_000:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
