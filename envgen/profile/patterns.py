"""The patterns of names and texts in a project file. The JSON Schema publishes them; binding matches them whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Sources, services, caches, profiles. Single underscores only: two separate the parts of an ENVGEN_... variable.
NAME = r"[a-z](_?[a-z0-9]){0,39}"
# Compose's project names and image names both accept it.
PROJECT_NAME = r"[a-z0-9]([_-]?[a-z0-9]){0,39}"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
APT_NAME = r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?"
REQUIREMENT = r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?( ?(==|>=|<=|~=|!=|<|>) ?[A-Za-z0-9.!+_*-]+,?)*"
FLAG = r"[a-zA-Z][a-zA-Z0-9._-]*"
SHA256 = r"[0-9a-f]{64}"
MODULE = r"[A-Za-z_][0-9A-Za-z_]*"
GIT_URL = r"(https?|git|ssh|file)://[^\s]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s]+"
GIT_REF = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
HTTP_URL = r"https?://[^\s]+"


RESTART = r"no|on-failure:[1-9][0-9]?"
IPC = r"private|host|shareable"
DOCKERFILE = r"Dockerfile(\.[A-Za-z0-9_-][A-Za-z0-9._-]*)?"
DISTRIBUTION = r"[A-Za-z0-9][A-Za-z0-9._-]*"
URL_PATH = r"/[^\s]*"
ULIMIT = r"[a-z]+"
PROGRAM = r"[A-Za-z0-9._/-]+"
COMMAND = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

# What a pattern means, for those who read an error message.
MEANING: Mapping[str, str] = {
    NAME: "small letters and digits, with single underscores between them",
    ENV_NAME: "letters, digits and underscores, not a digit first",
    APT_NAME: "a Debian package, such as git or git=1:2.47",
    REQUIREMENT: "a requirement, such as ninja or cmake>=3.26",
    FLAG: "a flag without its dashes, such as max-model-len",
    SHA256: "64 hexadecimal digits, small letters",
    MODULE: "the name that stands behind `import`",
    GIT_URL: "an address such as https://host/path.git or git@host:path.git",
    GIT_REF: "a branch, tag or commit",
    HTTP_URL: "an address such as https://host/path",
    RESTART: "no, or on-failure:N; `always` restarts a server that fills unified memory until the machine hangs",
    IPC: "private, host or shareable",
    DOCKERFILE: "Dockerfile, or Dockerfile. and a word",
    DISTRIBUTION: "the name that stands behind `pip install`",
    URL_PATH: "a path such as /health",
    ULIMIT: "the name of a limit, such as memlock",
    PROGRAM: "a program such as python3",
    COMMAND: "the name of a command",
}

_DIGITS = "0123456789"
_SMALL = "abcdefghijklmnopqrstuvwxyz"
_ALNUM = _DIGITS + _SMALL + _SMALL.upper()

# Compiling a regular expression takes about as long as binding fifty values. What most texts look like is accepted by
# its characters instead: (the first one, all of them) of a set that is sure to match. Anything else is asked of the
# expression itself, so a set may be too narrow and never too wide; a test compares the two.
_SURE: Mapping[str, tuple[str, str]] = {
    ENV_NAME: (_ALNUM[10:] + "_", _ALNUM + "_"),
    MODULE: (_ALNUM[10:] + "_", _ALNUM + "_"),
    FLAG: (_ALNUM[10:], _ALNUM + "._-"),
    DISTRIBUTION: (_ALNUM, _ALNUM + "._-"),
    COMMAND: (_ALNUM, _ALNUM + "._-"),
    REQUIREMENT: (_ALNUM, _ALNUM + "._-"),
    GIT_REF: (_ALNUM + "_", _ALNUM + "._/-"),
    PROGRAM: (_ALNUM, _ALNUM + "._/-"),
    ULIMIT: (_SMALL, _SMALL),
    URL_PATH: ("/", _ALNUM + "._/-"),
}
_SURE_WORDS: Mapping[str, frozenset[str]] = {
    IPC: frozenset(("private", "host", "shareable")),
    RESTART: frozenset(("no",)),
    DOCKERFILE: frozenset(("Dockerfile", "Dockerfile.dev")),
}


def matches(pattern: str, text: str) -> bool:
    """True when the whole of ``text`` matches ``pattern``."""
    sure = _SURE.get(pattern)
    if sure is not None:
        if text and text[0] in sure[0] and not text.strip(sure[1]):
            return True
    elif pattern in _SURE_WORDS:
        if text in _SURE_WORDS[pattern]:
            return True
    elif pattern in (NAME, PROJECT_NAME):
        if text.isascii() and text.isalnum() and text.islower() and text[0] in _SMALL and len(text) <= 40:
            return True
    elif pattern == SHA256:
        return len(text) == 64 and not text.strip(_DIGITS + "abcdef")
    elif pattern == APT_NAME:
        if len(text) > 1 and text[0] in _SMALL and not text.strip(_SMALL + _DIGITS + "+.-"):
            return True
    elif pattern in (HTTP_URL, GIT_URL) and text.startswith("https://") and not text[8:].strip(_ALNUM + "._/-"):
        return len(text) > 8
    return re.fullmatch(pattern, text) is not None


def meaning(pattern: str) -> str:
    """What a text must look like, in words."""
    return f"write {MEANING[pattern]}" if pattern in MEANING else f"it must match {pattern}"
