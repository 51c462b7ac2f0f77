"""Python and Debian packages, resolved inside the base image: with its Python, its packages and its indexes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from envgen.engine.base import MISSHAPEN, Engine, Mount, read_json
from envgen.errors import EngineError, LockError
from envgen.lock.ask import apt_asks, apt_build, python_asks, python_sets
from envgen.lock.model import AptLock, Pinned, PythonLock
from envgen.paths import docker_dir, templates_dir
from envgen.profile.model import Profile
from envgen.text import last_printed

TIMEOUT = 900
_CA = "/run/secrets/ca_certificates"
# Puts what comes on stdin into a folder, and runs the program there as a build step would be run.
_LAUNCH = """\
import json, os, sys, tempfile
folder = tempfile.mkdtemp(prefix="envgen-")
for name, text in json.load(sys.stdin).items():
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)
def at(name): return os.path.join(folder, name)
os.execv(sys.executable, [sys.executable, at("with-index"), sys.executable, at("lock-inside"), folder])
"""

# Where the base image has no Python: installs what brings it, as the build's first step will, and keeps the list of
# packages as it was before, so that these are locked too. $1 Python, $2 the program for it, $3 with-network.
_PYTHON_FIRST = """\
python=$1 launch=$2 network=$3
shift 3
if ! command -v "$python" >/dev/null; then
  cp -a /var/lib/dpkg /tmp/envgen-dpkg
  export ENVGEN_DPKG_BEFORE=/tmp/envgen-dpkg DEBIAN_FRONTEND=noninteractive
  {
    sh -c "$network" sh apt-get -q -o Acquire::Retries=3 update &&
      sh -c "$network" sh apt-get -q -o DPkg::Use-Pty=0 install -y --no-install-recommends "$@"
  } >/tmp/envgen-apt.log 2>&1 </dev/null || { tail -n 20 /tmp/envgen-apt.log >&2; exit 100; }
fi
exec "$python" -c "$launch"
"""


class Answers:
    """What one container found out: per profile, or why not."""

    def __init__(
        self,
        platform: str,
        python: Mapping[str, PythonLock | LockError],
        apt: Mapping[str, AptLock | LockError],
        notes: Sequence[str] = (),
    ):
        self.platform = platform
        self.python = python
        self.apt = apt
        self.notes = notes


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
    paths = [library / "with-network", library / "with-index", templates_dir() / "scripts" / "lock-inside"]
    files = {path.name: path.read_text("utf-8") for path in paths}
    files["request.json"] = json.dumps(request)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
    env = {n: os.environ[n] for upper in proxies for n in (upper, upper.lower()) if os.environ.get(n)}
    argv = [profile.base.python, "-c", _LAUNCH]
    if profile.base.apt:
        first = [profile.base.python, _LAUNCH, files["with-network"], *profile.base.apt]
        argv = ["sh", "-c", _PYTHON_FIRST, "sh", *first]
    done = engine.run_once(
        str(profile.base.image),
        argv,
        stdin=json.dumps(files).encode(),
        mounts=[Mount(ca, _CA, read_only=True)] if ca else [],
        env=env if profile.network.pass_proxy else {},
        user="0:0",
        network="bridge",
        timeout=TIMEOUT,
    )
    try:
        said = read_json(done.stdout.decode().splitlines()[-1])
        return Answers(
            f"linux/{said['arch']}",
            {p.name: _python_answer(p, base_digest, said["python"][p.name]) for p in python},
            {p.name: _apt_answer(p, base_digest, said["apt"]) for p in apt},
            [note for p in python if (note := _clash(p, said["python"][p.name]))],
        )
    except MISSHAPEN:
        image, program = profile.base.image, profile.base.python
        why = f"{image} has no {program}" if done.code in (126, 127) else last_printed(done.stderr, done.code, 10)
        raise LockError(
            f"packages for {image}: its {program} could not be asked: {why}",
            hint="does it have Python 3.8 or newer, with pip? If not: base.apt: [python3, python3-dev, python3-pip]",
        ) from None


def _clash(profile: Profile, said: Mapping[str, Any]) -> str:
    """Why no versions suit all steps of a profile; then each step replaces what the one before it has brought."""
    clash = said["ok"].get("clash") if "ok" in said else ""
    return f"{profile.name}: no versions suit pip.tools, pip.deps and the sources together: {clash}" if clash else ""


def _python_request(profile: Profile, keep: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    sets = [
        {
            "name": s.name,
            "words": list(s.words),
            "own": s.own,
            "never": list(s.never),
            "dependencies": s.dependencies,
            "needs_metadata": s.needs_metadata,
            "sdist": s.sdist,
        }
        for s in python_sets(profile)
    ]
    return {
        "sets": sets,
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
