"""Who knows what a name is at: git servers, image registries, the Hugging Face Hub.

Registries are asked by `docker buildx imagetools`, as a build would: Docker's own logins, credential helpers, mirrors,
proxies and certificates apply, and there is one place to set them.
"""

from __future__ import annotations

import concurrent.futures
import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import requests

from envgen import files
from envgen.engine import process
from envgen.engine.endpoint import plugin_argv
from envgen.engine.git import Answer, Mirror, ask_server, read_config
from envgen.engine.values import read_json
from envgen.errors import EngineError, EnvgenError, LockError, ProcessError
from envgen.lock.index import certificates
from envgen.lock.model import GIT, REGISTRY, GitLock, ImageLock, Submodule
from envgen.profile.model import ModelRef
from envgen.profile.values import ImageRef
from envgen.redact import without_login
from envgen.text import instant, visible

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MAX_DEPTH = 10  # of submodules in submodules
# What is worth another try; anything else that git says will be said again.
_PASSING = re.compile(
    r"timed out|did not end within|connection (?:reset|refused|closed)|hung up|early EOF|RPC failed|HTTP (?:5..|429)"
    r"|error: (?:5..|429)\b|temporar|unexpected disconnect|too slow|could not connect|unable to connect",
    re.I,
)


class Git:
    """Asks git servers. ``say`` hears of waits."""

    def __init__(
        self, say: Callable[[str], None] = lambda _line: None, *, timeout: float = 120, pause: float = 1.0
    ) -> None:
        self._say = say
        self._timeout = timeout
        self._pause = pause

    def resolve(self, url: str, ref: str, submodules: bool, without: Sequence[str] = ()) -> GitLock:
        """The commit of ``ref``, and of all submodules if they are wanted, but of those at the paths ``without``."""
        try:
            commit, kind = self._commit(url, ref)
            modules = tuple(self._submodules(url, ref, commit, "", 0, without)) if submodules else ()
        except LockError as error:
            problem = error.problems[0]
            raise LockError(f"{ref} of {without_login(url)}: {problem.message}", hint=problem.hint) from None
        return GitLock(url, ref, commit, kind, tuple(sorted(modules, key=lambda m: m.path)), GIT)

    def _commit(self, url: str, ref: str) -> tuple[str, str]:
        if COMMIT.fullmatch(ref):
            return ref, "commit"
        names = [ref] if ref.startswith("refs/") else [f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}"]
        listed = self._git(partial(ask_server, ["ls-remote", "--", url, *names], timeout=self._timeout))
        lines = listed.decode(errors="replace").splitlines()
        found = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        for name in (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
            if name in found:
                kind = "pull" if "/pull/" in name else "tag" if "/tags/" in name else "branch"
                return found[name], kind
        hint = "was it renamed or deleted? `git ls-remote ADDRESS` shows what is there"
        if re.fullmatch(r"[0-9a-f]{7,39}", ref):
            hint = "a commit must be written with all of its 40 digits"
        raise LockError("the server has no such branch, tag or pull request", hint=hint)

    def _submodules(
        self, url: str, ref: str, commit: str, prefix: str, depth: int, without: Sequence[str] = ()
    ) -> list[Submodule]:
        """All submodules below ``commit``. Their addresses are in .gitmodules, their commits in the tree."""
        if depth > MAX_DEPTH:
            raise LockError(f"its submodules nest deeper than {MAX_DEPTH} levels")
        with files.Scratch("git") as folder:
            mirror = Mirror.at(Path(folder), url)
            self._fetch(mirror, ref, commit)
            direct = self._direct(mirror, url, commit)
        for path in without:
            if direct.pop(path, None) is None:
                raise LockError(f"it has no submodule {path}", hint="submodule_origins names submodules by their path")
        found = []
        for path, (address, inner) in sorted(direct.items()):
            found.append(Submodule(f"{prefix}{path}", address, inner))
        if not direct:
            return []
        with concurrent.futures.ThreadPoolExecutor(len(direct)) as pool:
            below = [
                pool.submit(self._submodules, address, "", inner, f"{prefix}{path}/", depth + 1)
                for path, (address, inner) in sorted(direct.items())
            ]
            for (path, _), future in zip(sorted(direct.items()), below, strict=True):
                try:
                    found += future.result()
                except LockError as error:
                    problem = error.problems[0]
                    raise LockError(f"submodule {prefix}{path}: {problem.message}", hint=problem.hint) from None
        return found

    def _fetch(self, mirror: Mirror, ref: str, commit: str) -> None:
        """The trees of one commit, without its history and files."""
        options = ["-q", "--depth=1", "--no-tags", "--filter=blob:none", "origin"]
        try:
            self._in(mirror, "fetch", *options, commit)
            return
        except LockError as error:
            if _PASSING.search(error.problems[0].message):
                raise
        # Some servers hand out only what a ref names.
        wanted = [ref] if ref and not COMMIT.fullmatch(ref) else ["+refs/heads/*:refs/heads/*"]
        try:
            depth = (
                options if ref and not COMMIT.fullmatch(ref) else ["-q", "--no-tags", "--filter=blob:none", "origin"]
            )
            self._in(mirror, "fetch", *depth, *wanted)
            self._in(mirror, "cat-file", "-e", f"{commit}^{{tree}}")
        except LockError as error:
            if _PASSING.search(error.problems[0].message):
                raise
            raise LockError(
                f"the server does not have the commit {commit} (any more)", hint="was its branch force-pushed?"
            ) from None

    def _direct(self, mirror: Mirror, url: str, commit: str) -> dict[str, tuple[str, str]]:
        """path -> (address, commit) of the submodules that the commit itself has."""
        tree = self._in(mirror, "ls-tree", "-r", "-z", "--full-tree", commit).decode("utf-8", "surrogateescape")
        links = {}
        for entry in filter(None, tree.split("\0")):
            head, _, path = entry.partition("\t")
            if head.startswith("160000 "):
                links[path] = head.split()[2]
        if not links:
            return {}
        try:
            listed = read_config(self._in(mirror, "show", f"{commit}:.gitmodules"))
        except LockError:
            raise LockError("it has submodules, but no .gitmodules that says where they come from") from None
        except EnvgenError as error:
            raise LockError(f"its .gitmodules is {error.problems[0].message}") from None
        by_name: dict[str, dict[str, str]] = {}
        for name, value in listed:
            section, _, field = name.rpartition(".")
            if section.startswith("submodule.") and field in ("path", "url"):
                by_name.setdefault(section, {})[field] = value
        addresses = {fields.get("path", ""): fields.get("url", "") for fields in by_name.values()}
        missing = sorted(path for path in links if not addresses.get(path))
        if missing:
            raise LockError(f"its .gitmodules does not say where the submodule {missing[0]} comes from")
        found = {path: (absolute(url, addresses[path]), inner) for path, inner in links.items()}
        for path, (address, _) in found.items():
            if _is_local(address) and not _is_local(url):
                raise LockError(f"its submodule {path} comes from {address}, which is a folder of this machine")
        return found

    def _in(self, mirror: Mirror, *words: str) -> bytes:
        return self._git(partial(mirror.git, words, check=False, timeout=self._timeout))

    def _git(self, ask: Callable[[], Answer]) -> bytes:
        """Run git; what may pass is tried again. Addresses with passwords are kept out of what is said."""
        trouble = ""
        for attempt in range(3):
            if attempt:
                self._say(f"git: {trouble}; trying again in {self._pause * 2**attempt:.0f} s")
                time.sleep(self._pause * 2**attempt)
            try:
                done = ask()
            except process.ProcessTimeout:
                trouble = f"the server did not answer within {self._timeout:g} s"
                continue
            except EngineError as error:
                raise LockError(error.problems[0].message, hint=error.problems[0].hint) from None
            if done.code == 0:
                return done.stdout
            trouble = _sentence(done.stderr)
            if not _PASSING.search(trouble):
                break
        raise LockError(trouble, hint=_hint(trouble))


def _is_local(address: str) -> bool:
    return address.startswith(("/", ".", "file:"))


def absolute(base: str, address: str) -> str:
    """A submodule's address; one that begins with ./ or ../ counts from that of the repository it is in."""
    if not address.startswith(("./", "../")):
        return address
    if "://" in base:
        parts = urlsplit(base)
        return urlunsplit(parts._replace(path=posixpath.normpath(posixpath.join(parts.path.rstrip("/"), address))))
    host, colon, path = base.partition(":")
    if colon and "/" not in host:
        return f"{host}:{posixpath.normpath(posixpath.join(path.rstrip('/'), address))}"
    return posixpath.normpath(posixpath.join(base.rstrip("/"), address))


def _sentence(stderr: str) -> str:
    """Git's own reason: its last fatal or error line."""
    lines = [line.strip() for line in without_login(stderr).splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:", "remote:"))]
    told = [line for line in reasons if "Could not read from remote" not in line] or lines or ["git failed"]
    return re.sub(r"^(fatal|error|ERROR|remote): ", "", told[-1])[:300]


def _hint(trouble: str) -> str:
    lowered = trouble.lower()
    if "could not read username" in lowered or "authentication" in lowered or "403" in lowered or "401" in lowered:
        return "the repository is private, or its address is wrong; git's own credential helpers are used"
    if "not found" in lowered or "does not exist" in lowered or "404" in lowered:
        return "is the address right?"
    if "resolve host" in lowered:
        return "is the network up, and its proxy right?"
    return ""


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


HUB = "https://huggingface.co"
HUB_TIMEOUT = 30.0
LIMIT = 16 << 20  # bytes: an answer lists every file of the repository


def commit_of(model: ModelRef) -> str:
    """The commit; LockError when the hub doesn't name one. HF_ENDPOINT and HF_TOKEN are taken from the environment."""
    endpoint, token = os.environ.get("HF_ENDPOINT", HUB).rstrip("/"), os.environ.get("HF_TOKEN", "")
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    url = f"{endpoint}/api/models/{model.repo}/revision/{quote(model.revision, safe='')}"
    what = f"the model {model.repo} at {model.revision}"
    try:
        with requests.get(url, headers=headers, timeout=HUB_TIMEOUT, stream=True, verify=certificates()) as answer:
            status = answer.status_code
            body = answer.raw.read(LIMIT, decode_content=True) if status == 200 else b""
    except (requests.RequestException, OSError) as error:
        reason = str(error.__cause__ or error)[:200]
        raise LockError(f"{what}: the hub could not be asked: {reason}", hint="is the network up?") from None
    if status in (401, 403):
        raise LockError(f"{what}: the hub wants a token that may read it", hint="export HF_TOKEN=... in this shell")
    if status == 404:
        raise LockError(f"{what}: the hub has no such repository or revision", hint="check services.SERVICE.model")
    if status != 200:
        raise LockError(f"{what}: the hub answered {status}", hint="try again later")
    try:
        found = read_json(body)
    except ValueError:
        found = None
    commit = str(found.get("sha", "")) if isinstance(found, dict) else ""
    if not COMMIT.fullmatch(commit):
        raise LockError(f"{what}: the hub's answer names no commit", hint="is HF_ENDPOINT right?")
    return commit
