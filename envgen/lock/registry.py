"""Base images: from a name to digests. `docker buildx imagetools` asks the registry, as a build would.

So Docker's own logins, credential helpers, mirrors, proxies and certificates apply, and there is one place to set them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from envgen.engine import process
from envgen.engine.base import read_json
from envgen.engine.endpoint import plugin_argv
from envgen.errors import LockError, ProcessError
from envgen.lock.model import REGISTRY, ImageLock
from envgen.profile.values import ImageRef
from envgen.redact import without_login
from envgen.text import instant, visible

PLATFORMS = frozenset(("linux/amd64", "linux/arm64"))  # what envgen builds for
ATTEMPTS = 3
TIMEOUT = 60.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# What buildx writes -> what it means, and what to do. The first that matches counts.
_TROUBLES = (
    (r"\b429\b|toomanyrequests|rate limit", "{host} refuses more requests for now (429)",
     "try again later, or `docker login {host}`: accounts have a higher limit"),
    (r"\b401\b|unauthorized|authorization failed|authentication required|no basic auth|insufficient_scope",
     "{host} wants another login, or has no such image", "`docker login {host}`"),
    (r"\b403\b|forbidden|denied", "{host} forbids it (403)", "does your account there have access to this image?"),
    (r"\b404\b|not found|manifest unknown", "{host} has no such image",
     "is the name right, and does the tag still exist?"),
    (r"x509|certificate|tls:", "TLS with {host} failed: {words}",
     "add your company's certificates to this machine (update-ca-certificates), or put them into "
     "/etc/docker/certs.d/{host}/ca.crt"),
    (r"no such host|connection refused|i/o timeout|unreachable|no route|dial tcp|handshake timeout",
     "{host} cannot be reached: {words}", "is the network up, and its proxy right?"),
)  # fmt: skip
# Worth another try: it may be over in a second.
_PASSES = re.compile(r"\b5\d\d\b|\bEOF\b|connection reset|i/o timeout|handshake timeout|broken pipe", re.I)


def resolve_image(
    ref: ImageRef, say: Callable[[str], None] = lambda _line: None, *, timeout: float = TIMEOUT, pause: float = 1.0
) -> ImageLock:
    """Ask the image's registry. Raises LockError with a sentence that begins with the image's name."""
    name = str(ref)
    host = ref.registry or "docker.io"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done = process.run([*_inspect(), name], timeout=timeout, check=False)
        except process.ProcessTimeout:
            hint = "is the network up, and its proxy right?"
            raise LockError(f"{name}: {host} did not answer within {timeout:g} s", hint=hint) from None
        except ProcessError as error:
            raise LockError(f"{name}: {error}") from None
        if done.code == 0:
            return _read(name, ref.digest, done.stdout)
        words = _words(done.stderr)
        if attempt == ATTEMPTS or not _PASSES.search(words):
            raise _explained(name, host, words)
        say(f"{host}: {words}; trying again in {pause:.1f} s")
        time.sleep(pause)
        pause *= 2
    raise AssertionError("unreachable")


def _inspect() -> list[str]:
    return [*plugin_argv("buildx"), "imagetools", "inspect", "--format", "{{json .}}"]


def _words(stderr: bytes) -> str:
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "buildx gave no reason"
    return visible(without_login(re.sub(r"^(ERROR|error):\s*", "", last)))[:300]


def _explained(name: str, host: str, words: str) -> LockError:
    for pattern, sentence, hint in _TROUBLES:
        if re.search(pattern, words, re.I):
            return LockError(f"{name}: {sentence.format(host=host, words=words)}", hint=hint.format(host=host))
    return LockError(f"{name}: {words}", hint=f"does `docker buildx imagetools inspect {name}` work?")


def _read(name: str, wanted: str, answer: bytes) -> ImageLock:
    try:
        document = read_json(answer)
    except ValueError:
        raise LockError(f"{name}: buildx printed no JSON: is it 0.10 or newer?") from None
    document = _mapping(document)
    manifest, image = _mapping(document.get("manifest")), _mapping(document.get("image"))
    digest = str(manifest.get("digest", ""))
    if not _DIGEST.fullmatch(digest):
        raise LockError(f"{name}: its registry names no digest for it")
    if wanted and digest != wanted:
        raise LockError(f"{name}: what came has the digest {digest}", hint="a proxy that alters answers?")
    if not isinstance(manifest.get("manifests"), list):
        platform = f"{image.get('os', 'linux')}/{image.get('architecture', '')}"
        return ImageLock(name, digest, {platform: digest}, REGISTRY, seconds(str(image.get("created") or "")))
    platforms = _platforms(manifest["manifests"])
    if not platforms:
        raise LockError(f"{name}: its manifest list names no image for linux")
    times = [seconds(str(_mapping(one).get("created") or "")) for key, one in image.items() if _name(key) in PLATFORMS]
    return ImageLock(name, digest, platforms, REGISTRY, max(times, default=0))


def _platforms(manifests: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in map(_mapping, manifests):
        platform = _mapping(entry.get("platform"))
        name = f"{platform.get('os')}/{platform.get('architecture')}"
        digest = str(entry.get("digest", ""))
        # Attestations are in the list as unknown/unknown; of arm64's variants v8 comes first and is the common one.
        if name.startswith("linux/") and _DIGEST.fullmatch(digest):
            found.setdefault(name, digest)
    return found


def _name(platform: str) -> str:
    """``linux/arm64/v8`` without its variant."""
    return "/".join(platform.split("/")[:2])


def seconds(text: str) -> int:
    """A time as Docker writes it (2025-12-11T04:05:06.789Z), in whole seconds; 0 where there is none."""
    return max(0, int(instant(text).partition(".")[0] or 0))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
