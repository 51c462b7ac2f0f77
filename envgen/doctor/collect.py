"""From a profile to the probe's request, and from what came back to typed facts or the reason for none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from envgen.binding import ShapeError
from envgen.doctor.evidence import Probe, from_json
from envgen.doctor.model import Trouble
from envgen.engine.values import ExecResult
from envgen.errors import EnvgenError
from envgen.inside import run
from envgen.profile.model import Profile, Service
from envgen.text import last_printed

PROGRAM = run.Program(
    tuple(f"probe/{name}" for name in ("basics", "facts", "patches", "machine", "sources", "scripts", "main"))
)
Facts: TypeAlias = "tuple[Probe | None, Trouble | None]"  # or the reason for none: exactly one of the two
TIMEOUT = 15  # seconds; the probe itself gives up after 10
DATA = ("csrc", "include", "cutlass", "spdlog")  # what FlashInfer's JIT compiles from
ALSO = ("flashinfer_jit_cache", "flashinfer_cubin")
DISTRIBUTIONS = (
    "torch", "triton", "flash-attn", "flashinfer-cubin", "flashinfer-jit-cache", "apache-tvm-ffi", "nvidia-*", "opencv",
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip


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


def ask(execute: run.Execute, python: str, request: Mapping[str, Any]) -> Facts:
    """What the probe found in a container."""
    printed: list[ExecResult] = []

    def kept(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        printed.append(execute(argv, stdin, timeout))
        return printed[-1]

    try:
        said = run.ask(kept, python, PROGRAM, request, timeout=TIMEOUT)
    except EnvgenError as problem:
        missing = printed and printed[-1].code in (126, 127)
        return not_run(problem, f"the container has no {python}") if missing else not_run(problem)
    if isinstance(said, run.Failure):
        return None, _trouble(said, printed[-1])
    try:
        # The runner's mark begins a line: what is before it was printed while Python started.
        return from_json(said, noise=max(0, printed[-1].stdout.rfind(run.BEGIN))), None
    except ShapeError as problem:
        return None, Trouble("the probe's document can't be read", str(problem)[:300])


def not_run(problem: EnvgenError, title: str = "the probe could not be run") -> Facts:
    """No facts, because of this error."""
    return None, Trouble(title, str(problem).splitlines()[0][:300])


def _trouble(failure: run.Failure, answer: ExecResult) -> Trouble:
    last = last_printed("\n".join(failure.stack).encode(), failure.code)[:300]
    if failure.code == 137:
        return Trouble("the probe was killed", f"exit code 137; {last}")
    if failure.error != "no answer":
        last = f"{failure}"[:300]
    seen = f"exit code {answer.code}, {len(answer.stdout)} bytes of output; {last}"
    return Trouble("the probe brought no document back", seen)
