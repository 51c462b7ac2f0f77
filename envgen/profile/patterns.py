"""The patterns of names and texts in a project file. The JSON Schema publishes them; binding matches them whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Sources, services, caches, profiles. Single underscores only: two separate the parts of an ENVGEN_... variable.
NAME = r"[a-z](_?[a-z0-9]){0,39}"
# Machines.
NODE = r"[a-z0-9](-?[a-z0-9]){0,39}"
# Compose's project names and image names both accept it.
PROJECT_NAME = r"[a-z0-9]([_-]?[a-z0-9]){0,39}"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# Not with a dash at the end, which tells apt-get to remove the package.
APT_NAME = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](=[A-Za-z0-9.+:~-]*[A-Za-z0-9.+:~])?"
_SPECIFIER = r"(==|>=|<=|~=|!=|<|>) ?[A-Za-z0-9.!+_*-]+"
REQUIREMENT = rf"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?( ?{_SPECIFIER}( ?, ?{_SPECIFIER})*)?"
FLAG = r"[a-zA-Z][a-zA-Z0-9._-]*"
SHA256 = r"[0-9a-f]{64}"
MODULE = r"[A-Za-z_][0-9A-Za-z_]*"
# No part that git or ssh gets as a separate word may begin with a dash: it would be an option.
GIT_URL = (
    r"(https?|git|ssh)://(?!-)([^\s/@]*@)?(?!-)[^\s]+|file://[^\s]+"
    r"|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:(?!-)[^\s]+"
)
GIT_REF = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
HTTP_URL = r"https?://[^\s]+"
# A folder inside a repository: no dot or dash begins a part of it, so it leaves the repository by no way.
INNER_PATH = r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*"


USER = r"host|root|[0-9]{1,9}(:[0-9]{1,9})?"
RESTART = r"no|on-failure:[1-9][0-9]?"
IPC = r"private|host|shareable"
CONTEXT = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"  # of Docker
IPV4 = r"([1-9][0-9]{0,2})(\.[0-9]{1,3}){3}"
INTERFACE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
DOCKERFILE = r"Dockerfile(\.[A-Za-z0-9_-][A-Za-z0-9._-]*)?"
DISTRIBUTION = r"[A-Za-z0-9][A-Za-z0-9._-]*"
URL_PATH = r"/([^\s/][^\s]*)?"  # two slashes at the beginning would name another host
# Hugging Face: owner/name, without "--" and "..", which its cache gives a meaning of their own.
HUB_REPO = r"(?!.*(--|\.\.))[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
HUB_REVISION = r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,199}"
CPUS = r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"  # as Docker's --cpuset-cpus
# A name below /dev, in the container the same or another one. No part is "..".
_DEVICE = r"/dev/(?!\.\.?(?:[/:]|$))[A-Za-z0-9._-]+(/(?!\.\.?(?:[/:]|$))[A-Za-z0-9._-]+)*"
DEVICE = rf"{_DEVICE}(:{_DEVICE})?(:[rwm]{{1,3}})?"
ON_FAILURE = r"stop|restart:[1-9][0-9]{0,2}"
CAPABILITY = r"(?!ALL$|CAP_)[A-Z][A-Z0-9_]{1,40}"
LABEL = r"(?!dev\.envgen\.|com\.docker\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"
CONTAINER_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{1,62}"
NETWORK = r"host"
HUB_IGNORE = r"[A-Za-z0-9*?_.\[\]/-]+"
ULIMIT = r"[a-z]+"
SENTENCE = r"[^\s].*[^\s]"
PROGRAM = r"[A-Za-z0-9._/-]+"
COMMAND = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

# What a pattern means, for those who read an error message.
MEANING: Mapping[str, str] = {
    SENTENCE: "a sentence",
    NAME: "small letters and digits, with single underscores between them",
    NODE: "lowercase letters and digits, with single dashes between them",
    ENV_NAME: "letters, digits and underscores, not a digit first",
    APT_NAME: "a Debian package, such as git or git=1:2.47",
    REQUIREMENT: "a requirement, such as ninja or cmake>=3.26",
    FLAG: "a flag without its dashes, such as max-model-len",
    SHA256: "64 hexadecimal digits, small letters",
    MODULE: "the name that stands behind `import`",
    GIT_URL: "an address such as https://host/path.git or git@host:path.git",
    GIT_REF: "a branch, tag or commit",
    INNER_PATH: "a folder such as 3rdparty/cutlass",
    HTTP_URL: "an address such as https://host/path",
    CPUS: "numbers and ranges of CPUs, such as 0-9,15",
    USER: "host, root, or numbers: UID or UID:GID",
    RESTART: "no, or on-failure:N; `always` restarts a server that fills unified memory until the machine hangs",
    ON_FAILURE: "stop, or restart:N with a number such as 3",
    IPC: "private, host or shareable",
    CONTEXT: "the name of a Docker context, as `docker context ls` lists it",
    IPV4: "an IPv4 address such as 192.168.177.11",
    INTERFACE: "a network interface such as enp1s0f1np1",
    DOCKERFILE: "Dockerfile, or Dockerfile. and a word",
    DISTRIBUTION: "the name that stands behind `pip install`",
    URL_PATH: "a path such as /health",
    HUB_REPO: "a repository such as openai/gpt-oss-120b",
    HUB_REVISION: "a branch, tag or commit of the repository",
    DEVICE: "a device such as /dev/infiniband, or /dev/x:/dev/y:rw",
    CAPABILITY: "a capability such as IPC_LOCK, without CAP_; never ALL",
    LABEL: "a name such as com.example.owner; dev.envgen. and com.docker. are taken",
    CONTAINER_NAME: "letters, digits, -, _ and dots",
    NETWORK: "host; unset is a network of the profile's own",
    HUB_IGNORE: "a file name with * and ?, such as original/*",
    ULIMIT: "the name of a limit, such as memlock",
    PROGRAM: "a program such as python3",
    COMMAND: "the name of a command",
}


def matches(pattern: str, text: str) -> bool:
    """True when the whole of ``text`` matches ``pattern``."""
    return re.fullmatch(pattern, text) is not None


def meaning(pattern: str) -> str:
    """What a text must look like, in words."""
    return f"write {MEANING[pattern]}" if pattern in MEANING else f"it must match {pattern}"
