"""Python and Debian packages, resolved inside the base image: with its Python, its packages and its indexes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgen.engine.base import MISSHAPEN, Engine, ExecResult, Mount
from envgen.errors import EngineError, LockError
from envgen.inside import run
from envgen.lock.ask import apt_asks, apt_build, python_asks, python_sets
from envgen.lock.model import AptLock, Pinned, PythonLock
from envgen.paths import docker_dir
from envgen.profile.model import Profile
from envgen.text import last_printed

TIMEOUT = 900
_CA = "/run/secrets/ca_certificates"
PROGRAM = run.Program(("resolve",))
# $1 Python, $2 with-index, $3 with-network, $4 packages; then the program, which is run as a build step would be.
# Where the base image has no Python: installs what brings it, as the build's first step will, and keeps the list of
# packages as it was before, so that these are locked too.
_START = """\
python=$1 index=$2 network=$3 packages=$4
shift 4
if [ "$packages" ] && ! command -v "$python" >/dev/null; then
  cp -a /var/lib/dpkg /tmp/envgen-dpkg
  export ENVGEN_DPKG_BEFORE=/tmp/envgen-dpkg DEBIAN_FRONTEND=noninteractive
  {
    sh -c "$network" sh apt-get -q -o Acquire::Retries=3 update &&
      sh -c "$network" sh apt-get -q -o DPkg::Use-Pty=0 install -y --no-install-recommends $packages
  } >/tmp/envgen-apt.log 2>&1 </dev/null || { tail -n 20 /tmp/envgen-apt.log >&2; exit 100; }
fi
command -v "$python" >/dev/null || exit 101
folder=$(mktemp -d)
printf %s "$index" >"$folder/with-index"
printf %s "$network" >"$folder/with-network"
exec "$python" "$folder/with-index" "$@"
"""


@dataclass(frozen=True)
class Answers:
    """What one container found out: per profile, or why not."""

    platform: str
    python: Mapping[str, PythonLock | LockError]
    apt: Mapping[str, AptLock | LockError]
    notes: Sequence[str] = ()


def resolve(
    engine: Engine,
    python: Sequence[Profile],
    apt: Sequence[Profile],
    base_digest: str,
    keep: Mapping[str, Mapping[str, Mapping[str, str]]],
    ca: str = "",
) -> Answers:
    """Resolve for profiles that share a base image and its Python. ``keep``: profile -> set -> package -> version."""
    profile = [*python, *apt][0]
    request = {
        "python": {p.name: _python_request(p, keep.get(p.name, {})) for p in python},
        "apt": {p.name: {"build": list(apt_build(p)), "runtime": list(p.apt.runtime)} for p in apt},
    }
    library = docker_dir() / "runtime" / "lib"
    texts = [(library / name).read_text("utf-8") for name in ("with-index", "with-network")]
    start = ["sh", "-c", _START, "sh", profile.base.python, *texts, " ".join(profile.base.apt)]
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
    env = {n: os.environ[n] for upper in proxies for n in (upper, upper.lower()) if os.environ.get(n)}
    inside = run.in_image(
        engine,
        str(profile.base.image),
        mounts=[Mount(ca, _CA, read_only=True)] if ca else [],
        env=env if profile.network.pass_proxy else {},
        user="0:0",
        network="bridge",
    )

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return inside([*start, *argv], stdin, timeout)

    said = run.ask(execute, profile.base.python, PROGRAM, request, timeout=TIMEOUT)
    if isinstance(said, run.Failure):
        missing = f"{profile.base.image} has no {profile.base.python}"
        why = missing if said.code == 101 else last_printed("\n".join(said.stack), said.code, 10)
        raise _could_not_ask(profile, why)
    try:
        return Answers(
            f"linux/{said['arch']}",
            {p.name: _python_answer(p, base_digest, said["python"][p.name]) for p in python},
            {p.name: _apt_answer(p, base_digest, said["apt"]) for p in apt},
            [note for p in python if (note := _clash(p, said["python"][p.name]))],
        )
    except MISSHAPEN as problem:
        raise _could_not_ask(profile, f"{type(problem).__name__}: {problem}") from None


def _could_not_ask(profile: Profile, why: str) -> LockError:
    return LockError(
        f"packages for {profile.base.image}: its {profile.base.python} could not be asked: {why}",
        hint="does it have Python 3.8 or newer, with pip? If not: base.apt: [python3, python3-dev, python3-pip]",
    )


def _clash(profile: Profile, said: Mapping[str, Any]) -> str:
    """Why no versions suit all steps of a profile; then each step replaces what the one before it has brought."""
    clash = said["ok"].get("clash") if "ok" in said else ""
    return f"{profile.name}: no versions suit pip.tools, pip.deps and the sources together: {clash}" if clash else ""


def _python_request(profile: Profile, keep: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {
        "sets": [vars(one) for one in python_sets(profile)],
        "protect": list(profile.pip.protect),
        "off": [*profile.pip.override, *profile.pip.remove],
        "removed": list(profile.pip.remove),
        "keep": dict(keep),
    }


def _python_answer(profile: Profile, base_digest: str, said: Mapping[str, Any]) -> PythonLock | LockError:
    if "failed" in said:
        return LockError(f"the Python packages of profile {profile.name}: {said['failed']}", hint=_hint(said["failed"]))
    found = said["ok"]
    sets = {
        name: tuple(Pinned(str(pin["name"]), str(pin["version"]), tuple(map(str, pin["hashes"]))) for pin in pins)
        for name, pins in found["sets"].items()
    }
    if problem := _mismatch(sets):
        return LockError(f"the Python packages of profile {profile.name}: {problem}")
    return PythonLock(python_asks(profile, base_digest), str(found["python"]), sets, found["open"])


def _mismatch(sets: Mapping[str, Sequence[Pinned]]) -> str:
    """FlashInfer's packages refuse to work together unless they are of one release."""
    for name, pins in sets.items():
        family = {p.name: p.version.partition("+")[0] for p in pins if p.name.startswith("flashinfer")}
        if len(set(family.values())) > 1:
            listed = ", ".join(f"{package} {version}" for package, version in sorted(family.items()))
            return f"{name} would mix releases of FlashInfer: {listed}; name one version for all of them"
    return ""


def _apt_answer(profile: Profile, base_digest: str, said: Mapping[str, Any]) -> AptLock | LockError:
    if "failed" in said:
        return LockError(f"the Debian packages of profile {profile.name}: {said['failed']}", hint=_hint(said["failed"]))
    found = said["ok"][profile.name]
    return AptLock(apt_asks(profile, base_digest), *(tuple(map(str, found[name])) for name in ("build", "runtime")))


def _hint(text: str) -> str:
    lowered = text.lower()
    if "certificate" in lowered:
        return "a company's own certificate authority goes into network.ca_certificates"
    if "dns error" in lowered or ("resolve" in lowered and "host" in lowered) or "connection" in lowered:
        return "do containers of this engine reach the network?"
    return ""


def explain(error: EngineError) -> LockError:
    """An engine's trouble, as the reason why packages are not locked."""
    problem = error.problems[0]
    return LockError(f"packages: they are resolved in the base image, but {problem.message}", hint=problem.hint)
