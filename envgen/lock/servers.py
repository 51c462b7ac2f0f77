"""Resolves names: by git servers, image registries, the Hugging Face Hub.

Registries are asked by `docker buildx imagetools`, as builds do: Docker's own logins, credential
helpers, mirrors, proxies and certificates apply.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from envgen.binding import JsonObject
from envgen.engine import process
from envgen.engine.endpoint import plugin_argv
from envgen.engine.git import GitOutput, ask_server
from envgen.engine.values import read_json
from envgen.engine.web import get
from envgen.errors import EngineError, LockError, ProcessError
from envgen.lock.model import REGISTRY, GitLock, ImageLock
from envgen.profile.service import ModelRef
from envgen.profile.values import ImageRef
from envgen.redact import without_login
from envgen.text import instant, network_reason, visible

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Puts ``what`` in front of a LockError's message."""
    try:
        yield
    except LockError as error:
        raise LockError(f"{what}: {error.message}", hint=error.problems[0].hint) from None


# --- git: from a branch, tag, commit or pull request to a commit
# ------------------------------------------------------

_PRIVATE = re.compile(r"could not read username|authentication|40[13]", re.I)


def resolve_git(url: str, ref: str, *, timeout: float = 120) -> GitLock:
    """The commit of a branch, tag or pull request; of a commit, itself: the build says whether the
    server has it. Raises LockError.
    """
    if COMMIT.fullmatch(ref):
        return GitLock(url, ref, ref, "commit")
    with _about(f"{ref} of {without_login(url)}"):
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
        names = [ref] if ref.startswith("refs/") else names
        listed = _git(
            partial(ask_server, ["ls-remote", "--", url, *names], timeout=timeout), timeout
        )
        lines = listed.decode(errors="replace").splitlines()
        commits = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        for name in names:
            if name in commits:
                kind = "pull" if "/pull/" in name else "tag" if "/tags/" in name else "branch"
                return GitLock(url, ref, commits[name], kind)
        hint = "it may have been renamed or deleted: `git ls-remote ADDRESS` lists all refs"
        if re.fullmatch(r"[0-9a-f]{7,39}", ref):
            hint = "write all 40 digits of a commit"
        raise LockError("the server has no such branch, tag or pull request", hint=hint)


def _git(ask: Callable[[], GitOutput], timeout: float) -> bytes:
    """What git prints. Messages show no passwords."""
    try:
        done = ask()
    except process.ProcessTimeout:
        raise LockError(f"the server did not answer within {timeout:g} s") from None
    except EngineError as error:
        raise LockError(error.message, hint=error.problems[0].hint) from None
    if done.code:
        trouble = _sentence(done.stderr)
        hint = "the repository is private, or its address is wrong; git's own credential helpers are used"
        raise LockError(trouble, hint=hint if _PRIVATE.search(trouble) else "")
    return done.stdout


def _sentence(stderr: str) -> str:
    """Git's own reason: its last fatal or error line."""
    lines = [line.strip() for line in without_login(stderr).splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:", "remote:"))]
    messages = (
        [line for line in reasons if "Could not read from remote" not in line]
        or lines
        or ["git failed"]
    )
    return re.sub(r"^(fatal|error|ERROR|remote): ", "", messages[-1])[:300]


# --- registries: from an image's name to digests
# ----------------------------------------------------------------------

PLATFORMS = frozenset(("linux/amd64", "linux/arm64"))  # what envgen builds for
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())


def resolve_image(ref: ImageRef, *, timeout: float = 60.0) -> ImageLock:
    """The digests of an image, from its registry. Raises LockError, whose message begins with the
    image's name.
    """
    name = str(ref)
    host = ref.registry or "docker.io"
    argv = [*plugin_argv("buildx"), "imagetools", "inspect", "--format", "{{json .}}", name]
    with _about(name):
        try:
            done = process.run(argv, timeout=timeout, check=False)
        except process.ProcessTimeout:
            hint = "check the network and its proxy"
            raise LockError(f"{host} did not answer within {timeout:g} s", hint=hint) from None
        except ProcessError as error:
            raise LockError(str(error)) from None
        if done.code:
            raise registry_error(
                _words(done.stderr), ref, hint=f"try `docker buildx imagetools inspect {name}`"
            )
        return _read(name, ref.digest, done.stdout)


def registry_error(words: str, ref: ImageRef, *, hint: str) -> LockError:
    """The error for a registry's or the network's ``words`` about an image; ``hint``: for unknown
    ones.
    """
    host = ref.registry or "docker.io"
    for pattern, sentence, known in _DATA["registries"]:
        if re.search(pattern, words, re.I):
            message = sentence.format(host=host, words=words)
            return LockError(message, hint=known.format(host=host))
    return LockError(words, hint=hint)


def _words(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    last = lines[-1].strip() if lines else "buildx gave no reason"
    reason = re.sub(r"^(ERROR|error):\s*", "", last)
    return visible(without_login(reason))[:300]


def _read(name: str, wanted: str, answer: bytes) -> ImageLock:
    try:
        document = _mapping(read_json(answer))
    except ValueError:
        raise LockError("buildx printed no JSON; envgen needs buildx 0.10 or newer") from None
    manifest = _mapping(document.get("manifest"))
    image = _mapping(document.get("image"))
    digest = str(manifest.get("digest", ""))
    if not _DIGEST.fullmatch(digest):
        raise LockError("its registry gives no digest")
    if wanted and digest != wanted:
        raise LockError(
            f"the answer has the digest {digest}", hint="a proxy may have changed the answer"
        )
    if not isinstance(manifest.get("manifests"), list):
        platform = f"{image.get('os', 'linux')}/{image.get('architecture', '')}"
        return ImageLock(
            name, digest, {platform: digest}, REGISTRY, seconds(str(image.get("created") or ""))
        )
    platforms: dict[str, str] = {}
    for entry in map(_mapping, manifest["manifests"]):
        platform = "{os}/{architecture}".format_map(
            {"os": "", "architecture": "", **_mapping(entry.get("platform"))}
        )
        # Attestations are in the list as unknown/unknown; of arm64's variants v8 comes first and is
        # the common one.
        if platform.startswith("linux/") and _DIGEST.fullmatch(str(entry.get("digest", ""))):
            platforms.setdefault(platform, entry["digest"])
    if not platforms:
        raise LockError("its manifest list names no image for linux")
    # linux/arm64/v8 without its variant
    times = []
    for key, one in image.items():
        if "/".join(key.split("/")[:2]) in PLATFORMS:
            created = _mapping(one).get("created") or ""
            times.append(seconds(str(created)))
    return ImageLock(name, digest, platforms, REGISTRY, max(times, default=0))


def seconds(text: str) -> int:
    """A time as Docker writes it (2025-12-11T04:05:06.789Z), in whole seconds; 0 where there is
    none.
    """
    return max(0, int(instant(text).partition(".")[0] or 0))


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


# --- the Hugging Face Hub: which commit a model's revision is at
# (https://huggingface.co/docs/hub/api) ----------------

HUB = "https://huggingface.co"
LIMIT = 16 << 20  # bytes: an answer lists every file of the repository


def commit_of(model: ModelRef) -> str:
    """The commit of a model's revision, by HF_ENDPOINT and HF_TOKEN. Raises LockError."""
    commit = str(_about_model(model, "").get("sha", ""))
    if not COMMIT.fullmatch(commit):
        hint = "check HF_ENDPOINT"
        raise LockError(
            f"the model {model.repo} at {model.revision}: the hub's answer names no commit",
            hint=hint,
        )
    return commit


def size_of(model: ModelRef) -> int:
    """The bytes of a model's files, without those that `ignore` leaves out. Raises LockError."""
    rows = _about_model(model, "?blobs=true").get("siblings")
    if not isinstance(rows, list):
        return 0
    total = 0
    for row in rows:
        if not isinstance(row, dict):
            continue
        name = str(row.get("rfilename"))
        size = row.get("size")
        is_ignored = any(fnmatch(name, str(glob)) for glob in model.ignore)
        if isinstance(size, int) and size > 0 and not is_ignored:
            total += size
    return total


def _about_model(model: ModelRef, query: str) -> JsonObject:
    """What the hub says of a model's revision. Raises LockError."""
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    token = os.environ.get("HF_TOKEN", "")
    headers = {
        "Accept": "application/json",
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }
    url = f"{endpoint}/api/models/{model.repo}/revision/{quote(model.revision, safe='')}{query}"
    with _about(f"the model {model.repo} at {model.revision}"):
        try:
            reply = get(url, headers=headers, largest=LIMIT)
        except OSError as error:
            hint = "check the network and its proxy"
            if "certificate" in str(error).lower():
                hint = "export REQUESTS_CA_BUNDLE=FILE, with your company's certificates"
            raise LockError(f"cannot reach the hub: {network_reason(error)}", hint=hint) from None
        status = reply.status
        if status != 200:
            message, hint = _DATA["hub"].get(
                status, (f"the hub answered {status}", "try again later")
            )
            if token and status in (401, 403):
                message = f"the hub refused HF_TOKEN ({status})"
                hint = "check the token's access, and accept the model's licence on its page"
            raise LockError(message, hint=hint)
        try:
            return _mapping(read_json(reply.body))
        except ValueError:
            return {}
