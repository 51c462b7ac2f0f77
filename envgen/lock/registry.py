"""Base images: from a name to digests, over the registry's HTTP API (distribution-spec 1.1)."""

from __future__ import annotations

import calendar
import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import requests

from envgen.errors import LockError
from envgen.lock.credentials import Credentials
from envgen.lock.model import REGISTRY, ImageLock
from envgen.lock.web import Web, document
from envgen.profile.values import ImageRef

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
PLATFORMS = frozenset(("linux/amd64", "linux/arm64"))  # what envgen builds for
DOCKER_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"


class Registry:
    """One registry, and what it asked us to prove."""

    def __init__(self, host: str, web: Web, credentials: Credentials) -> None:
        self.host = host or DOCKER_HUB
        self._web = web
        self._credentials = credentials
        self._scheme = "http" if _loopback(self.host) else "https"  # as Docker does: loopback needs no TLS
        self._headers: dict[str, str] = {}

    def get(self, path: str, accept: tuple[str, ...], repository: str) -> requests.Response:
        """A GET below /v2/, with the proof that the registry wants."""
        api = _HUB_API if self.host == DOCKER_HUB else self.host
        url = f"{self._scheme}://{api}/v2/{path}"
        headers = {"Accept": ", ".join(accept)}
        answer = self._web.get(url, {**headers, **self._headers})
        if answer.status_code == 400 and self._scheme == "http" and b"HTTPS" in answer.content:
            self._scheme = "https"
            return self.get(path, accept, repository)
        if answer.status_code == 401 and not self._headers:
            self._headers = self._proof(answer.headers.get("WWW-Authenticate", ""), repository)
            answer = self._web.get(url, {**headers, **self._headers})
        return answer

    def _proof(self, challenge: str, repository: str) -> dict[str, str]:
        kind, _, rest = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        found = self._credentials.of(self.host)
        if kind.lower() == "basic":
            if found is None:
                raise LockError(f"{self.host} wants a user and password", hint=f"`docker login {self.host}`")
            return {"Authorization": found.basic}
        if kind.lower() != "bearer" or not fields.get("realm"):
            raise LockError(f"{self.host} wants a proof of a kind that is not known here: {kind or 'none named'}")
        realm = fields["realm"]
        parts = urlsplit(realm)
        if parts.scheme != "https" and not _loopback(parts.netloc):
            raise LockError(f"{self.host} wants its password sent unencrypted to {parts.netloc}; refused")
        query = {"scope": fields.get("scope") or f"repository:{repository}:pull"}
        if fields.get("service"):
            query["service"] = fields["service"]
        address = f"{realm}{'&' if parts.query else '?'}{urlencode(query)}"
        answer = self._web.get(address, {"Authorization": found.basic} if found else None)
        if answer.status_code in (401, 403):
            who = f"the user {found.user}" if found else "nobody in particular"
            hint = f"`docker login {self.host}`"
            raise LockError(f"{parts.netloc} gives {who} no token for {self.host} ({answer.status_code})", hint=hint)
        if answer.status_code != 200:
            raise LockError(f"{parts.netloc}, which gives the tokens of {self.host}, answered {answer.status_code}")
        said = document(answer, f"the token of {self.host}")
        token = said.get("token") or said.get("access_token") if isinstance(said, dict) else None
        if not isinstance(token, str):
            raise LockError(f"{parts.netloc} answered without a token for {self.host}")
        return {"Authorization": f"Bearer {token}"}


def resolve_image(ref: ImageRef, web: Web, credentials: Credentials) -> ImageLock:
    """Ask the image's registry. Raises LockError with a sentence that begins with the image's name."""
    name = str(ref)
    try:
        return _resolve(ref, name, Registry(ref.registry, web, credentials))
    except LockError as error:
        problem = error.problems[0]
        raise LockError(f"{name}: {problem.message}", hint=problem.hint) from None


def _resolve(ref: ImageRef, name: str, registry: Registry) -> ImageLock:
    repository = ref.path if ref.registry or "/" in ref.path else f"library/{ref.path}"
    wanted = ref.digest or ref.tag or "latest"
    answer = registry.get(f"{repository}/manifests/{wanted}", INDEXES + MANIFESTS, repository)
    _check(answer, registry.host, wanted)
    digest = _digest(answer, ref.digest)
    manifest = _mapping(document(answer, "the manifest"))
    if not isinstance(manifest.get("manifests"), list):
        platform, created = _config(manifest, registry, repository)
        return ImageLock(name, digest, {platform: digest}, REGISTRY, created)
    platforms = _platforms(manifest["manifests"])
    if not platforms:
        raise LockError("its manifest list names no image for linux")
    times = []
    for platform in sorted(PLATFORMS.intersection(platforms)):
        answer = registry.get(f"{repository}/manifests/{platforms[platform]}", MANIFESTS, repository)
        _check(answer, registry.host, f"manifest for {platform}")
        _digest(answer, platforms[platform])
        times.append(_config(_mapping(document(answer, "the manifest")), registry, repository)[1])
    return ImageLock(name, digest, platforms, REGISTRY, max(times, default=0))


def _config(manifest: Mapping[str, Any], registry: Registry, repository: str) -> tuple[str, int]:
    """(platform, when it was made) of an image, from its configuration."""
    if manifest.get("schemaVersion") == 1 or "config" not in manifest:
        raise LockError("its manifest is of an old kind (schema 1), which has no digest to rely on")
    config = str(_mapping(manifest["config"]).get("digest", ""))
    answer = registry.get(f"{repository}/blobs/{config}", ("*/*",), repository)
    _check(answer, registry.host, config)
    _digest(answer, config)
    said = _mapping(document(answer, "the image's configuration"))
    return f"{said.get('os', 'linux')}/{said.get('architecture', '')}", seconds(str(said.get("created") or ""))


def seconds(text: str) -> int:
    """A time as Docker writes it (2025-12-11T04:05:06.789Z), in whole seconds; 0 where there is none."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if not match:
        return 0
    found = calendar.timegm(tuple(map(int, match.groups()[:6])))
    if match[7] != "Z":
        offset = int(match[7][1:3]) * 3600 + int(match[7][4:6]) * 60
        found -= offset if match[7][0] == "+" else -offset
    return max(0, found)


def _check(answer: requests.Response, host: str, wanted: str) -> None:
    status = answer.status_code
    if status == 200:
        return
    if status == 401:
        raise LockError(f"{host} does not accept the user and password that Docker has for it (401)",
                        hint=f"`docker login {host}`")  # fmt: skip
    if status == 403:
        raise LockError(f"{host} forbids it (403)", hint="does your account there have access to this image?")
    if status == 404:
        raise LockError(f"{host} has no {wanted} of it (404)", hint="is the name right, and does the tag still exist?")
    raise LockError(f"{host} answered {status}")


def _digest(answer: requests.Response, expected: str) -> str:
    """The digest of what came, which must be what the registry says and what was asked for."""
    found = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
    for said, who in (
        (answer.headers.get("Docker-Content-Digest", ""), "the registry says"),
        (expected, "asked for was"),
    ):
        if said.startswith("sha256:") and said != found:
            raise LockError(f"what came has the digest {found}, but {who} {said}", hint="a proxy that alters answers?")
    return found


def _platforms(manifests: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in map(_mapping, manifests):
        platform = _mapping(entry.get("platform"))
        name = f"{platform.get('os')}/{platform.get('architecture')}"
        digest = str(entry.get("digest", ""))
        # Attestations stand in the list as unknown/unknown; of arm64's variants v8 comes first and is the common one.
        if name.startswith("linux/") and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            found.setdefault(name, digest)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _loopback(host: str) -> bool:
    name = host.rpartition(":")[0] or host
    return name == "localhost" or name.startswith("127.") or name == "[::1]"
