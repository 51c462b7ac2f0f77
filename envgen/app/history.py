"""What each start that became ready was made of, and what has changed since one worked.

``.envgen/starts/<profile>.<service>.json`` holds the last starts, oldest first: facts as text, and
seconds by phase. Of a service on several machines, each has a file of its own. Facts that are not
known at both times are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from envgen import files
from envgen.bench.facts import PROGRAM, checkouts, kernels
from envgen.binding import bind
from envgen.deployment import LiveService
from envgen.engine import box, process
from envgen.engine.values import MISSHAPEN, read_json
from envgen.errors import EnvgenError
from envgen.inside import hub, run
from envgen.inside.common import read_text
from envgen.profile.caches import HUGGINGFACE
from envgen.redact import redact_secrets
from envgen.render.locking import LABEL as LOCK_LABEL
from envgen.serve.start import StartResult
from envgen.text import GIB, first_of, shorten, visible

FORMAT = 1
FOLDER = "starts"
KEPT = 20
SLOWER = 4 / 3  # of the median of the starts before
LARGEST = 1 << 20  # bytes of the file
SHOWN = 60  # characters of a value
KERNEL_LINES = 5000  # of a log, for the kernels that it names
INSIDE = 30.0  # seconds for one in a container
LISTED = 9  # changes in a sentence
NOTHING: Mapping[str, str] = {}
PACKAGE = "package "  # the name of a fact begins with it; of the last start alone

# The names of facts, the most suspicious first: what changes without a word of the user's.
DRIVER = "driver"
KERNEL = "kernel"
FIRMWARE = "firmware"
SYSTEM = "DGX OS"
MEMORY = "free memory, GiB"
CLOCKS = "clocks"
ABOUT = 0.75  # of another free memory, and it is no change
SUSPECTS = (
    DRIVER,
    KERNEL,
    FIRMWARE,
    SYSTEM,
    "Docker",
    "container toolkit",
    MEMORY,
    CLOCKS,
    "image",
    "lock",
    "command",
    "variant",
)
# Where a machine says it: the first group is the fact.
_FILES = {
    DRIVER: ("/proc/driver/nvidia/version", r"\b(\d{3,4}(?:\.\d+){1,2})\b"),
    FIRMWARE: ("/sys/class/dmi/id/bios_version", r"(\S.*)"),
    SYSTEM: ("/etc/dgx-release", r'(?:OTA|SWBUILD)_VERSION="?([^"\n]+)"?\s*\Z'),
}


@dataclass(frozen=True)
class NotedStart:
    """A start that became ready. ``at``: UTC; ``seconds``: until ready; ``phases``: seconds each."""

    at: str
    seconds: float
    facts: Mapping[str, str]
    phases: Mapping[str, float] = field(default_factory=dict)


READ = tuple(path for path, _ in _FILES.values())


def said_by(texts: Mapping[str, str]) -> dict[str, str]:
    """What a machine says of its driver, firmware and system, in the ``texts`` of its files."""
    facts = {}
    for name, (path, pattern) in _FILES.items():
        match = re.search(pattern, texts.get(path, "").strip())
        if match:
            facts[name] = match[1].strip()
    return facts


def machine_facts() -> dict[str, str]:
    """What this machine says of itself, and the version of its container toolkit."""
    facts = said_by({path: read_text(path) for path in READ})
    with suppress(EnvgenError, OSError):
        done = process.run(["nvidia-ctk", "--version"], timeout=5, check=False)
        version = re.search(rb"version ([\w.-]+)", done.stdout)
        if version:
            facts["container toolkit"] = version[1].decode()
    return facts


def found(service: LiveService) -> dict[str, str]:
    """What a start finds on this machine: free memory, and what lowers the clocks of its GPUs."""
    if not service.deployment.is_local:
        return {}
    machine = box.look()
    free = machine.memory.get("MemAvailable", 0) / GIB
    limits = sorted({limit for gpu in machine.gpus for limit in gpu.limits})
    return {MEMORY: f"{free:.1f}", CLOCKS: f"limited by {', '.join(limits) or 'nothing'}"}


def facts_of(service: LiveService) -> dict[str, str]:
    """What a start of ``service`` is made of now, as far as it is known without a container."""
    deployment = service.deployment
    profile = service.profile
    facts = machine_facts() if deployment.is_local else {}
    with suppress(EnvgenError):
        info = deployment.engine.info()
        facts |= {KERNEL: info.kernel, "Docker": info.version}
        image = deployment.image
        if image is not None:
            facts["image"] = image.id.removeprefix("sha256:")[:12]
            facts["lock"] = image.labels.get(LOCK_LABEL, "")[:12]
        weights = deployment.caches.get(HUGGINGFACE.name)
        if weights and deployment.is_local:  # a volume has no such folder
            for model in service.described.models:
                folder = hub.folder_of(weights.source, model.repo)
                facts[f"weights {model.repo}"] = hub.commit_of(folder, model.revision)
    facts["variant"] = profile.variant
    facts["command"] = redact_secrets(" ".join(service.described.argv))
    for name, commit in checkouts(profile, deployment.root).items():
        facts[f"source {name}"] = commit
    return {name: value for name, value in facts.items() if value}


def inside(place: run.Execute) -> dict[str, str]:
    """The versions of the Python packages there, and what the machine says in each of its
    containers; empty where nobody answers.
    """
    with suppress(EnvgenError, *MISSHAPEN):
        answer = run.ask(place, "python3", PROGRAM, {"all": True, "files": READ}, timeout=INSIDE)
        if isinstance(answer, run.NoAnswer):
            return {}
        facts = said_by(answer["files"])
        for name, version in answer["versions"].items():
            facts[PACKAGE + name] = str(version)
        return facts
    return {}


def remember(
    service: LiveService, started: StartResult, before: Mapping[str, str] = NOTHING
) -> list[str]:
    """Note a start that became ready, and what was ``found`` before. Lines for the user where it
    was slower than usual.
    """
    seen = inside(run.in_container(service.engine, started.container.id))
    facts = {**seen, **facts_of(service), **before}
    with suppress(EnvgenError):
        log = service.engine.logs(started.container.id, tail=KERNEL_LINES)
        for number, line in enumerate(kernels(log)):
            facts[f"kernels {number}"] = line
    root = service.deployment.root
    profile = service.profile.name
    place = place_of(service)
    return note(root, profile, place, facts, started.seconds, started.awaited.phases)


def since_it_worked(
    service: LiveService, *, asks: bool = False, before: Mapping[str, str] = NOTHING
) -> str:
    """What changed since the last start that worked; "" where none is noted. ``asks``: another
    image than then is asked for its packages, and another machine for its driver, which takes a
    second. ``before``: what this start ``found``.
    """
    earlier = starts(service.deployment.root, service.profile.name, place_of(service))
    if not earlier:
        return ""
    facts = {**facts_of(service), **before}
    deployment = service.deployment
    image = deployment.image if asks else None
    last = earlier[-1]
    is_known = deployment.is_local and facts.get("image") == last.facts.get("image")
    if image is not None and not is_known:
        facts = inside(run.in_image(service.engine, image.id)) | facts
    return deployment.named(since(last, facts))


def place_of(service: LiveService) -> str:
    """The service, and its machine where there are several."""
    return ".".join(filter(None, (service.name, service.deployment.node)))


def path_of(root: Path, profile: str, service: str) -> Path:
    """Where the starts of a service are noted."""
    return files.state_dir(root, FOLDER) / f"{profile}.{service}.json"


def starts(root: Path, profile: str, service: str) -> list[NotedStart]:
    """The noted starts, oldest first. None where the file is missing, damaged or a link."""
    with suppress(OSError, EnvgenError, *MISSHAPEN):
        text = files.read(path_of(root, profile, service), limit=LARGEST, follow=False)
        document = read_json(text)
        if document["format"] != FORMAT:
            return []
        return [bind(NotedStart, row) for row in document["starts"]]
    return []


def note(
    root: Path,
    profile: str,
    service: str,
    facts: Mapping[str, str],
    seconds: float,
    phases: Mapping[str, float],
) -> list[str]:
    """Note a start that became ready. Lines for the user where it was a third slower than usual."""
    earlier = starts(root, profile, service)
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    start = NotedStart(now, round(seconds, 1), facts, phases)
    rows = [asdict(one) for one in [*earlier, start][-KEPT:]]
    for row in rows[:-1]:
        kept = row["facts"].items()
        row["facts"] = {name: value for name, value in kept if PACKAGE not in name}
    text = json.dumps({"format": FORMAT, "starts": rows}, indent=1, ensure_ascii=False)
    with suppress(OSError, EnvgenError):  # a full disk fails no start
        files.write(path_of(root, profile, service), text.encode() + b"\n", within=root)
    if len(earlier) < 2:
        return []
    usual = sorted(one.seconds for one in earlier)[len(earlier) // 2]
    if seconds < usual * SLOWER or seconds < usual + 10:
        return []
    slower = f"slower than usual: {seconds:.0f} s, {usual:.0f} s before"
    return [slower, since(earlier[-1], facts)]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What differs of the facts that both have, by name, the most suspicious first."""
    both = before.keys() & now.keys()
    others = sorted(both.difference(SUSPECTS))
    changed = {}
    for name in (*SUSPECTS, *others):
        if name in both and _differ(name, before[name], now[name]):
            old = shorten(before[name], SHOWN)
            new = shorten(now[name], SHOWN)
            changed[name] = f"{name} {old} → {new}"
    return changed


def _differ(name: str, then: str, now: str) -> bool:
    if name == MEMORY:
        with suppress(ValueError):
            least, most = sorted(map(float, (then, now)))
            return least < ABOUT * most
    return then != now


def since(last: NotedStart, facts: Mapping[str, str]) -> str:
    """What changed since the last start that worked, as a sentence."""
    when = visible(f"since the start of {last.at[:10]} {last.at[11:16]}Z that worked")
    differing = changes(last.facts, facts)
    if not differing:
        return f"{when}: nothing that envgen knows has changed"
    same = [it for it in ("image", "lock", "command") if it in facts and it not in differing]
    unchanged = f"; the same: {', '.join(same)}" if same else ""
    listed = visible(", ".join(first_of(list(differing.values()), LISTED)))
    return f"{when}: {listed}{unchanged}"
