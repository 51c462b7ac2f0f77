"""Runs git in three ways; none executes a command that a stranger's repository names.

- ``git`` runs in a temporary folder of envgen, without the user's configuration.
- ``Mirror`` is a bare repository of envgen that fetches from servers, with the user's own
  configuration (credentials,
  proxies, certificates) and by known protocols only.
- ``WorkTree`` reads a checkout. git never sees the checkout's own git directory, because much in it
  is a command
  (core.fsmonitor, filter drivers, textconv, hooks, ssh and gpg programs, ...) and each release adds
  more: a list of overrides is never complete. git gets a directory of envgen with its own
  configuration, a copy of the index, and references to the objects and refs. So it writes nothing
  into the checkout's git directory, not even a lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine import process
from envgen.errors import EngineError, EnvgenError, RefusedError, UsageError
from envgen.redact import without_login
from envgen.text import progress, reason_of

_SAME_EVERYWHERE = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "envgen",
    "GIT_AUTHOR_EMAIL": "envgen@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "envgen",
    "GIT_COMMITTER_EMAIL": "envgen@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
    "LC_ALL": "C",
}
# Only the repository's configuration. HOME is for git before 2.32, which does not know
# GIT_CONFIG_GLOBAL.
_ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": os.devnull,
    "XDG_CONFIG_HOME": "",
}
_OPTIONS = ("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.hooksPath=/dev/null")
# The user's settings for reaching servers; every other GIT_ variable names a repository or changes
# an answer.
_OF_SERVERS = ("GIT_SSL_", "GIT_SSH", "GIT_PROXY", "GIT_ASKPASS", "GIT_HTTP_")
_PROTOCOLS = "https:http:git:ssh:file"
_LARGEST_INDEX = 1 << 30
_SMALL = 1 << 20
# By setuptools-scm (vLLM), FlashInfer's build (data/: links to its sources), setuptools' editable
# install, compilers.
_WRITTEN_BY_BUILDS = re.compile(
    r"(?:^|/)(?:_version\.py|_build_meta\.py|[^/]+\.egg-info/.*|__pycache__/.*|[^/]+\.(?:so|o|pyc))$"
    r"|^flashinfer/data/|^(?:build|\.deps)/"
)


@dataclass(frozen=True)
class GitOutput:
    """The exit code and output of a git command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Its stdout as text, without the last newline."""
        return self.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def names(self) -> list[str]:
        """Its stdout with ``-z``, as names."""
        return [os.fsdecode(raw) for raw in self.stdout.split(b"\0") if raw]


class GitRepository:
    """A repository in which git runs."""

    def git(
        self, arguments: Sequence[str], *, env: Mapping[str, str] = {}, **options: Any
    ) -> GitOutput:
        """Run ``git ARGUMENTS``. ``options``: stdin, timeout, check, as in ``_run``."""
        flags, cwd, own = self._setting()
        return _run(flags, arguments, cwd, {**own, **env}, **options)

    def _setting(self) -> tuple[Sequence[str], Path, Mapping[str, str]]:
        """git's flags, the folder to run it in, and its variables."""
        raise NotImplementedError


def git(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] = {}, **options: Any
) -> GitOutput:
    """Run ``git ARGUMENTS`` in ``cwd``, a folder of envgen. For a checkout use ``WorkTree``."""
    flags = ["-c", "core.autocrlf=false", "-c", "core.fsmonitor=false"]
    env = {**_ALONE, "GIT_CEILING_DIRECTORIES": str(cwd.parent), **env}
    return _run(flags, arguments, cwd, env, **options)


@dataclass(frozen=True)
class Mirror(GitRepository):
    """A bare repository of envgen that fetches from a git server what it lacks."""

    folder: Path

    @classmethod
    def at(cls, folder: Path, url: str) -> Mirror:
        """The mirror of ``url`` in ``folder``, created where it is missing. It fetches files when
        they are read.
        """
        if not (folder / "HEAD").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            git(["init", "--quiet", "--bare", "--template=", "."], cwd=folder)
            mirror = cls(folder)
            for key, value in (
                ("url", url),
                ("promisor", "true"),
                ("partialclonefilter", "blob:none"),
            ):
                mirror.git(["config", f"remote.origin.{key}", value])
        return cls(folder)

    @classmethod
    def fetched(cls, url: str, ref: str, *, moves: bool, timeout: float) -> tuple[Mirror, str]:
        """The mirror of ``url`` in envgen's cache, and the commit of ``ref`` there.

        ``moves``: fetch it even if the cache has it. Only the files that are read are downloaded.
        """
        folder = files.cache_dir() / "git" / _short_digest(url)
        mirror = cls.at(folder, url)
        name = f"refs/envgen/{_short_digest(ref)}"
        words = ["rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
        if moves or mirror.git(words, check=False).code:
            progress(f"fetching {ref} of {without_login(url)}")
            options = ["--quiet", "--depth=1", "--filter=blob:none", "--no-tags"]
            mirror.git(["fetch", *options, "origin", f"+{ref}:{name}"], timeout=timeout)
        return mirror, mirror.git(words).text

    def _setting(self) -> tuple[Sequence[str], Path, Mapping[str, str]]:
        return ["--git-dir=.", *_FETCHING], self.folder, server_environment()


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# Gives up on a silent server after 30 s; git itself would wait forever.
_FETCHING = (
    *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=30"),
    *(
        "-c",
        "fetch.recurseSubmodules=false",
        "-c",
        "submodule.recurse=false",
        "-c",
        "core.fsmonitor=false",
    ),
)


def ask_server(arguments: Sequence[str], *, timeout: float = 120) -> GitOutput:
    """Run ``git ARGUMENTS`` against a server, in an empty folder, away from the repository around
    the current folder.

    The exit code is not checked.
    """
    with files.Scratch("git") as empty:
        env = {**server_environment(), "GIT_CEILING_DIRECTORIES": str(Path(empty).parent)}
        return _run(_FETCHING, arguments, Path(empty), env, timeout=timeout, check=False)


def server_environment() -> dict[str, str]:
    """Variables for reaching servers: no prompts, known protocols only, else the user's settings."""
    env = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        env[name] = os.environ.get(name) or "true"
    if not os.environ.get("GIT_SSH"):
        env["GIT_SSH_COMMAND"] = (
            os.environ.get("GIT_SSH_COMMAND") or "ssh -o BatchMode=yes -o ConnectTimeout=15"
        )
    return env


def read_config(content: bytes) -> list[tuple[str, str]]:
    """The entries of a git configuration file, as git reads it, without includes; none takes
    effect.
    """
    words = ["config", "--file", "-", "--no-includes", "-z", "--list"]
    environ = {"GIT_DIR": os.devnull}
    listed = git(words, cwd=Path("/"), stdin=content, env=environ, check=False)
    if listed.code:
        raise EnvgenError(f"not a git configuration: {listed.text or listed.stderr.strip()}")
    entries = []
    for entry in listed.names:
        key, _, value = entry.partition("\n")
        entries.append((key, value))
    return entries


class WorkTree(GitRepository):
    """A checkout on this machine.

    ``folder`` must be the top of a work tree (a clone, a linked worktree or a submodule) that
    belongs to the user, as git requires it; another user's needs the user's own ``safe.directory``.
    Bare repositories are refused.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.folder = folder.resolve(strict=True)
        except (OSError, RuntimeError):
            raise UsageError(f"folder {folder} does not exist") from None
        entry = self.folder / ".git"
        try:
            self.git_dir = _git_dir(entry)
            self._common = _common_dir(self.git_dir)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            why = "" if missing else f": {reason_of(error)} ({error.filename})"
            raise UsageError(f"{folder} is not a git checkout{why}") from None
        self._refuse_foreign((self.folder, entry, self.git_dir, self._common))
        self._view: files.Scratch | None = None
        self._without: dict[str, str] = {}

    def _setting(self) -> tuple[Sequence[str], Path, Mapping[str, str]]:
        """At the top of the checkout. git writes into a directory of envgen."""
        if self._view is None:
            view = files.Scratch("git")
            try:
                self._fill(Path(view.name))
            except OSError as error:
                raise UsageError(
                    f"{self.folder} cannot be read: {reason_of(error)} ({error.filename})"
                ) from None
            self._view = view
        own = self._view.name
        env = {
            **_ALONE,
            "GIT_DIR": own,
            "GIT_WORK_TREE": str(self.folder),
            # git starts itself (in submodules) and other programs by name: here it finds none.
            "GIT_EXEC_PATH": f"{own}/empty",
            "PATH": f"{own}/empty",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ATTR_NOSYSTEM": "1",
        }
        return ["-c", "core.fsmonitor=false"], self.folder, env

    @property
    def head(self) -> str:
        """The commit that is checked out; "" without one."""
        return self.commit("HEAD")

    def commit(self, revision: str) -> str:
        """The commit of a branch, tag or any other revision; "" without one."""
        if revision.startswith("-"):
            raise UsageError(f"{revision!r} is not a revision")
        answer = self.git(
            ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], check=False
        )
        return "" if answer.code else answer.text

    def edited(self, revision: str) -> list[str]:
        """Tracked files that differ from ``revision``, in the work tree or the index. Submodules
        are left out.
        """
        words = ["diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv"]
        return self.git([*words, "--ignore-submodules=all", revision, "--"], env=self._files).names

    def untracked(self) -> list[str]:
        """Untracked files that git does not ignore. A repository inside is one name with a slash at
        its end.
        """
        return self.git(["ls-files", "--others", "--exclude-standard", "-z"]).names

    def generated(self, names: Sequence[str]) -> list[str]:
        """Files not edited by hand: tracked though git ignores them, or written by a build or an
        editable install.
        """
        ignored = set(
            self.git(["ls-files", "--cached", "--ignored", "--exclude-standard", "-z"]).names
        )
        return [name for name in names if name in ignored or _WRITTEN_BY_BUILDS.search(name)]

    def submodules(self) -> list[str]:
        """The paths of the submodules in the index."""
        entries = self.git(["ls-files", "--stage", "-z"]).names
        return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]

    @contextmanager
    def index(self, tree: str = "") -> Iterator[dict[str, str]]:
        """The variable for a temporary index: a copy of the checkout's, or one with ``tree``."""
        self.git(["rev-parse", "--git-dir"])
        assert self._view
        with tempfile.TemporaryDirectory(dir=self._view.name) as folder:
            env = {"GIT_INDEX_FILE": f"{folder}/index"}
            current = Path(self._view.name, "index")
            if tree or not current.exists():
                self.git(["read-tree", tree or "HEAD"], env=env)
            else:
                self._copy(
                    current, Path(folder, "index")
                )  # its times and sizes save reading every file
            yield env

    def tree(self, paths: Sequence[str] = ()) -> str:
        """The hash of the current work tree: tracked files, and ``paths``. Submodules are as in the
        index.
        """
        words = ["diff-files", "--name-only", "-z", "--ignore-submodules=all"]
        listed = self.git(words, env=self._files).names
        for path in paths:
            if os.path.lexists(self.folder / path):
                listed.append(path)
        with self.index() as env:
            # Not `git add`: it runs `git status` in submodules.
            words = ["update-index", "--add", "--remove", "-z", "--stdin"]
            self.git(words, stdin=_listed(listed), env=env)
            return self.git(["write-tree"], env=env).text

    @property
    def _files(self) -> dict[str, str]:
        """The variable for an index without submodules: git would read the configuration of each."""
        if not self._without:
            links = self.submodules()
            with self.index() as env:
                if links:
                    self.git(
                        ["update-index", "--force-remove", "-z", "--stdin"],
                        stdin=_listed(links),
                        env=env,
                    )
                assert self._view
                self._without = {"GIT_INDEX_FILE": f"{self._view.name}/files"}
                Path(env["GIT_INDEX_FILE"]).rename(self._without["GIT_INDEX_FILE"])
        return self._without

    def _refuse_foreign(self, paths: Sequence[Path]) -> None:
        foreign = [path for path in dict.fromkeys(paths) if not files.is_ours(path)]
        if foreign and not _named_safe(self.folder):
            raise RefusedError(
                f"{foreign[0]} belongs to another user (uid {foreign[0].lstat().st_uid})",
                hint=f"if you trust it: git config --global --add safe.directory {self.folder}",
            )

    def _fill(self, own: Path) -> None:
        """Fill a git directory for the checkout: its data, with a configuration of envgen."""
        (own / "empty").mkdir()
        (own / "info").mkdir()
        (own / "objects" / "info").mkdir(parents=True)
        (own / "config").write_text(self._config(), encoding="utf-8")
        (own / "objects" / "info" / "alternates").write_bytes(
            os.fsencode(self._common / "objects") + b"\n"
        )
        (own / "HEAD").write_bytes(files.read(self.git_dir / "HEAD", limit=_SMALL))
        for name in ("refs", "reftable"):
            if (self._common / name).is_dir():
                (own / name).symlink_to(self._common / name)
        if (self.git_dir / "logs").is_dir():
            (own / "logs").symlink_to(self.git_dir / "logs")
        for name in ("packed-refs", "shallow"):
            self._copy(self._common / name, own / name)
        self._copy(self._common / "info" / "exclude", own / "info" / "exclude")
        for entry in os.scandir(self.git_dir):
            # ORIG_HEAD and the like; the index, and the base of a split index
            if re.fullmatch(r"[A-Z_]+_HEAD|index|sharedindex\.[0-9a-f]+", entry.name):
                self._copy(Path(entry.path), own / entry.name)

    def _copy(self, source: Path, target: Path) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            before = source.stat()
            target.write_bytes(files.read(source, limit=_LARGEST_INDEX))
            # git compares file times with the index's: a newer copy would hide an edit of the same
            # second.
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _config(self) -> str:
        """A configuration with those settings of the checkout that change how files are read."""
        try:
            content = files.read(self._common / "config", limit=_SMALL)
        except FileNotFoundError:
            content = b""
        lines = [
            "[core]",
            "\trepositoryformatversion = 1",
            "\tbare = false",
            "\tuntrackedCache = false",
        ]
        ignore = files.xdg_dir("XDG_CONFIG_HOME", ".config") / "git" / "ignore"
        if ignore.is_file() and not re.search(r'["\\\n]', str(ignore)):
            lines.append(f'\texcludesFile = "{ignore}"')  # the user's own; HOME is not set
        for key, value in read_config(content):
            if (pattern := _HARMLESS.get(key)) and re.fullmatch(pattern, value, re.IGNORECASE):
                section, _, name = key.partition(".")
                lines += [f"[{section}]", f"\t{name} = {value}"]
        return "\n".join(lines) + "\n"


# Settings that only change how files are read.
_BOOLEAN = "true|false|yes|no|on|off|1|0|"
_HARMLESS = {
    "core.filemode": _BOOLEAN,
    "core.symlinks": _BOOLEAN,
    "core.ignorecase": _BOOLEAN,
    "core.autocrlf": "true|false|input",
    "core.eol": "lf|crlf|native",
    "extensions.objectformat": "sha1|sha256",
    "extensions.refstorage": "files|reftable",
}


def _named_safe(folder: Path) -> bool:
    """Whether the user's or the machine's configuration trusts this folder of another user."""
    words = ["config", "--type=path", "-z", "--get-all", "safe.directory"]
    listed = _run((), words, Path("/"), {"GIT_DIR": os.devnull}, check=False)
    trusted = False
    for value in listed.stdout.split(b"\0")[:-1]:
        name = os.fsdecode(value)
        if not name:
            trusted = False  # an empty value resets the list
        elif name in ("*", str(folder)) or (
            name.endswith("/*") and folder.is_relative_to(name[:-2])
        ):
            trusted = True
    return trusted


def _git_dir(entry: Path) -> Path:
    """The git directory: ``.git`` itself, or the folder that this file names."""
    if stat.S_ISDIR(entry.stat().st_mode):
        return entry.resolve()
    return _named(entry, files.read(entry, limit=_SMALL), b"gitdir: ")


def _common_dir(git_dir: Path) -> Path:
    """The git directory with the objects and refs: another one for a linked worktree."""
    try:
        return _named(git_dir / "commondir", files.read(git_dir / "commondir", limit=_SMALL), b"")
    except FileNotFoundError:
        return git_dir


def _named(file: Path, content: bytes, start: bytes) -> Path:
    if not content.startswith(start):
        raise files.NotAFile(file, "does not name a git directory")
    return (file.parent / os.fsdecode(content.removeprefix(start).rstrip(b"\r\n"))).resolve(
        strict=True
    )


def _run(
    options: Sequence[str],
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes = b"",
    timeout: float = 120,
    check: bool = True,
) -> GitOutput:
    """With ``check`` a failure raises an ``EnvgenError`` with git's message."""
    program = shutil.which("git")
    without = shutil.which("env")
    if program is None or without is None:
        raise EngineError("the program 'git' is not installed", hint="install git")
    foreign = [
        name for name in os.environ if name.startswith("GIT_") and not name.startswith(_OF_SERVERS)
    ]
    drop = [word for name in foreign for word in ("-u", name)]
    done = process.run(
        [
            *([without, *drop] if drop else []),
            program,
            "--no-pager",
            *_OPTIONS,
            *options,
            *arguments,
        ],
        stdin=stdin,
        env={**_SAME_EVERYWHERE, **env},
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    answer = GitOutput(done.code, done.stdout, done.stderr.decode("utf-8", "replace"))
    if check and answer.code:
        last = answer.stderr.strip().splitlines()[-3:] or [f"exit code {answer.code}"]
        raise EnvgenError(f"git {arguments[0]} failed: {' / '.join(last)}")
    return answer


def _listed(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
