"""From a profile to the probe's request, and from what its exec gave back to typed facts or the reason for none.

Asking must start early and reading comes late, so what only reading needs is imported there.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envgen.binding import ShapeError
from envgen.doctor.evidence import Probe, read_document
from envgen.doctor.model import Trouble
from envgen.engine.base import ExecResult
from envgen.errors import EnvgenError
from envgen.inside.run import text_of
from envgen.profile.model import Profile, Service
from envgen.text import last_printed

PARTS = ("facts", "patches", "machine", "sources", "load", "scripts", "main")
# What runs the parts' texts in one namespace; the probe passes it on when it must start another interpreter.
LOADER = "for _name, _text in PARTS:\n    exec(compile(_text, _name, 'exec'), globals())\n"
# One read of the whole of stdin; `python3 -` would read it line by line through its tokenizer.
STARTER = "import marshal, sys; CARRIED = marshal.loads(sys.stdin.buffer.read()); exec(CARRIED[0]) # envgen-probe"
_HEAD = """\
PARTS, LOADER = CARRIED[1], CARRIED[2]
for _name, _text in PARTS:
    exec(compile(_text, _name, "exec", dont_inherit=True), globals())
"""
_FORMAT = 2  # of marshal: plain values in it are read by every Python 3
TIMEOUT = 30  # seconds; the probe itself gives up after 10
DATA = ("csrc", "include", "cutlass", "spdlog")  # what FlashInfer's JIT compiles from
ALSO = ("flashinfer_jit_cache", "flashinfer_cubin")
DISTRIBUTIONS = (
    "torch", "triton", "flash-attn", "flashinfer-cubin", "flashinfer-jit-cache", "apache-tvm-ffi", "nvidia-*", "opencv",
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip


def probe_program(request: Mapping[str, Any]) -> bytes:
    """What STARTER reads from stdin: the probe's files, their loader, and the request."""
    parts = [(f"{name}.py", text_of(f"probe/{name}")) for name in PARTS]
    return marshal.dumps((_HEAD, parts, LOADER, dict(request)), _FORMAT)


def folders(profile: Profile, service: str) -> list[str]:
    """Where Python is started: where the service and a shell start, each checkout and its parent, / and the home."""
    described = profile.services.get(service)
    found = [str(described.working_dir)] if described and described.working_dir else []
    found.append(str(profile.working_dir))
    for source in profile.mounted_sources.values():
        found += [str(source.mount).rsplit("/", 1)[0] or "/", str(source.mount)]
    return list(dict.fromkeys([*found, "/", "~"]))


def flags(profile: Profile, service: str) -> list[str]:
    """The flags of vLLM's server: of the service if it starts one, else of all services that do."""
    mine = [profile.services[service]] if service in profile.services else []
    for described in mine if any(map(is_server, mine)) else list(profile.services.values()):
        if is_server(described):
            words = described.argv[: described.argv.index("--")] if "--" in described.argv else described.argv
            head = words.index("-m") + 2 if "-m" in words else 1  # python's own words are not vLLM's
            return [word.partition("=")[0] for word in words[head:] if is_flag(word)]
    return []


def is_server(service: Service) -> bool:
    """Whether a service starts vLLM's API server."""
    return service.command[:2] == ("vllm", "serve") or "vllm.entrypoints.openai.api_server" in service.command


def is_flag(word: str) -> bool:
    """`--name` or `-n`, and no negative number."""
    return (word.startswith("-") and word[1:2].isalpha()) or (word.startswith("--") and word[2:3].isalpha())


def request(
    profile: Profile,
    service: str,
    *,
    paths: Iterable[str] | None = None,
    claims: Sequence[dict[str, Any]] = (),
    load: bool = False,
) -> dict[str, Any]:
    """The probe's request. ``paths``: the mounts to look at; default: all that the profile names.

    ``claims``: what patches must have left in files (claims.py). ``load``: load the vocabularies for real, which takes
    a second.
    """
    sources = profile.sources.values()
    if paths is None:
        paths = [
            *(str(s.mount) for s in profile.mounted_sources.values()),
            *(str(c.path) for c in profile.caches.values()),
        ]
    return {
        "packages": [
            {
                "package": source.package,
                "distribution": source.distribution,
                "mount": str(source.mount),
                "scripts": list(source.console_scripts),
                "data": list(DATA) if source.package == "flashinfer" else [],
            }
            for source in sources
        ],
        "folders": folders(profile, service),
        "also": list(ALSO) if any(source.package == "flashinfer" for source in sources) else [],
        "distributions": list(DISTRIBUTIONS),
        "paths": list(paths),
        "encodings": [f"{profile.tiktoken.directory}/{name}.tiktoken" for name in profile.tiktoken.encodings],
        "flags": flags(profile, service),
        "claims": list(claims),
        "load": list(profile.tiktoken.encodings) if load else [],
    }


def program(profile: Profile) -> str:
    """The Python that a user's shell would start: by name, so that a virtual environment on PATH wins."""
    return profile.base.python if "/" not in profile.base.python else "python3"


def argv(profile: Profile) -> list[str]:
    """What is executed in the container; ``probe_program`` goes to its stdin."""
    return [program(profile), "-c", STARTER]


def read(answer: ExecResult | EnvgenError, python: str) -> tuple[Probe | None, Trouble | None]:
    """What the exec gave back, as facts or as the reason why there are none: exactly one of the two."""
    if isinstance(answer, EnvgenError):
        return None, Trouble("the probe could not be run", str(answer).splitlines()[0][:300])
    try:
        probe = read_document(answer.stdout)
    except ShapeError as problem:
        return None, Trouble("the probe's document can't be read", str(problem)[:300])
    if probe is not None:
        return probe, None
    last = last_printed((answer.stderr or answer.stdout)[-2000:], answer.code)[:300]
    if answer.code in (126, 127):
        return None, Trouble(f"the container has no {python}", last)
    if answer.code == 137:
        return None, Trouble("the probe was killed", f"exit code 137; {last}")
    seen = f"exit code {answer.code}, {len(answer.stdout)} bytes of output; {last}"
    return None, Trouble("the probe brought no document back", seen)
