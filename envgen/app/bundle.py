"""The bundle: what `up` keeps of a service that failed, and what `doctor --bundle` writes. One list of files.

What can't be had stops nothing: its file then has the reason. Secrets and names are taken out when the archive is
written: every file redacted, equal bytes for equal files, whole or not at all.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from envgen import __version__, files
from envgen.app.doctor import Diagnosis, joined
from envgen.deployment import Deployment
from envgen.doctor import report
from envgen.doctor.collect import gather, or_none
from envgen.doctor.model import Subject
from envgen.engine import process
from envgen.engine.api import time_budget
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, UsageError
from envgen.files import state_dir
from envgen.redact import redact, secret_values
from envgen.serve.ended import StartFailure
from envgen.text import counted, plain_text, progress, reason_of, table

FOLDER = "crash"  # below the state folder, which git ignores
PATIENCE = 60.0  # seconds for all questions of `doctor --bundle` to one engine together
STUCK = 20.0  # seconds for one question to a container that may be stuck
RECORD = "/run/envgen-memory"  # of docker/runtime/libexec/memory-guard: two minutes, a line a second
LOG_LINES = 100_000  # of a server's log: as many as LOG_LIMIT holds, with lines as servers write them
KERNEL_LINES = 2000
LOG_BYTES = 4 << 20  # of each build log: its end
LOGS = 3  # newest build logs

Collected = tuple[dict[str, str], set[str]]  # the files of one machine, and secrets to remove everywhere


def write_report(target: Path, diagnoses: Sequence[Diagnosis]) -> None:
    """Write the bundle of `doctor --bundle`."""

    def of(diagnosis: Diagnosis) -> Collected:
        context = diagnosis.report.context
        return collect(diagnosis.deployment, context.service, report.as_data(diagnosis.report), context.container)

    with time_budget(PATIENCE):
        members = {"doctor.txt": report.as_text(joined(diagnoses)) + "\n"}
        count = write(target, members, {one.deployment.node: partial(of, one) for one in diagnoses})
    progress(
        f"  wrote {target}: {counted(count, 'file')}, secrets and names taken out; look into it before you send it"
    )


def save(
    machines: Sequence[Deployment], service: str, failure: StartFailure, cause: str, culprit: str = ""
) -> str:  # fmt: skip
    """Write what ``service`` left behind, the log's cause and doctor's report to .envgen/crash/. Returns the path.

    ``machines``: those of the service, the head first. ``culprit``: the one that failed first. If the bundle can't be
    written, that is printed and the path is "": the failure itself matters more.
    """
    root, profile = machines[0].root, machines[0].profile.name
    facts = {name: value for name, value in vars(failure).items() if name != "container"}
    facts |= {"profile": profile, "service": service, "cause": cause, "culprit": culprit}

    def of(deployment: Deployment) -> Collected:
        if deployment.node != culprit:
            return collect(deployment, service, {"not asked": f"{culprit} failed first"})
        try:
            doctor = report.as_data(report.examine(*gather(Subject(deployment, service))))
        except (EnvgenError, OSError) as error:
            doctor = {"not available": reason_of(error)}
        return collect(deployment, service, doctor, failure.container)

    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    target = state_dir(root, FOLDER) / f"{stamp}-{service}.tar.gz"
    try:
        write(target, {"findings.json": as_json(facts)}, {one.node: partial(of, one) for one in machines}, within=root)
    except (EnvgenError, OSError) as error:
        progress(f"  the crash bundle could not be written: {reason_of(error)}")
        return ""
    return str(target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)


# --- the archive ------------------------------------------------------------------------------------------------------


def write(
    target: Path, members: dict[str, str], machines: Mapping[str, Callable[[], Collected]], within: Path | None = None
) -> int:  # fmt: skip
    """Write ``members`` (name -> text) and what each machine has, in its own folder if there are several.

    Returns the number of files. UsageError if it can't be written there.
    """
    known = set[str]()
    with ThreadPoolExecutor(len(machines)) as pool:
        for node, (texts, secrets) in zip(machines, pool.map(lambda ask: ask(), machines.values()), strict=True):
            members |= {f"{node}/{name}" if len(machines) > 1 else name: text for name, text in texts.items()}
            known |= secrets
    try:
        files.write(target, archive(members, known), mode=0o600, within=within)
    except OSError as problem:
        hint = "name a file in a folder that is there, is yours and has space"
        raise UsageError(f"{target} can't be written: {reason_of(problem)}", hint=hint) from None
    return len(members)


def archive(members: Mapping[str, str], known: set[str] = frozenset()) -> bytes:  # type: ignore[assignment]
    """A .tar.gz without times and owners; names and texts redacted. ``known``: further secret values."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in sorted(members.items()):
            data = redact(plain_text(text), known=known).encode("utf-8", "replace")
            info = tarfile.TarInfo(redact(name, known=known))
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def as_json(document: Any) -> str:
    """``document`` as JSON; types that JSON lacks become similar ones."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return sorted(value) if isinstance(value, (set, frozenset)) else str(value)

    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=plain) + "\n"


# --- one machine ------------------------------------------------------------------------------------------------------


def collect(deployment: Deployment, service: str, doctor: Any, container: Container | None = None) -> Collected:
    """The files about a service on one machine. ``container``: the service's, as it was known last."""
    profile, engine, texts = deployment.profile, None, dict[str, str]()
    try:
        engine = deployment.engine
        container = next(iter(engine.containers(profile.compose_name, service, all=True)), None) if service else None
        texts = {name: _text(ask) for name, ask in _questions(engine, container, profile.secrets).items()}
    except EnvgenError as error:
        texts["no-engine.txt"] = f"{reason_of(error)}\n"
    about = {
        "envgen": __version__,
        "python": platform.python_version(),
        "system": " ".join((platform.system(), platform.release(), platform.machine())),
        "profile": profile.name,
        "variant": profile.variant,
        "engine": or_none(lambda: vars(engine.info())) if engine else None,
        "image": or_none(lambda: deployment.image and vars(deployment.image)) if engine else None,
    }
    texts |= {"doctor.json": as_json(doctor), "versions.json": as_json(about), **_project(deployment)}
    return texts, secrets_of(deployment, container)


def secrets_of(deployment: Deployment, container: Container | None) -> set[str]:
    """Values to remove everywhere, besides those of this shell: of the profile's secrets, and of the container."""
    inside = dict(container.env) if container else {}
    places = [place.get(name, "") for name in deployment.profile.secrets for place in (deployment.shell, inside)]
    return {*secret_values(inside), *filter(None, places)}


def _text(ask: Callable[[], str]) -> str:
    """What ``ask`` returns, or why there is nothing."""
    try:
        text = ask()
    except (EnvgenError, OSError, ValueError) as error:
        text = f"not available: {reason_of(error)}"
    return text if not text or text.endswith("\n") else text + "\n"


def _questions(engine: Engine, container: Container | None, secrets: Sequence[str]) -> dict[str, Callable[[], str]]:
    """What an engine and its machine are asked. ``secrets``: names of variables whose values must not be kept."""
    machine: dict[str, Callable[[], str]] = {
        "memory.txt": lambda: _memory(engine, container),
        "gpu.txt": lambda: _gpu(engine, container),
        "kernel.log": lambda: "\n".join(_printed_here(engine, "dmesg").splitlines()[-KERNEL_LINES:]),
    }
    if container is None:
        return {**machine, "server.log": lambda: "not available: there was no container"}
    return {
        **machine,
        "server.log": lambda: engine.logs(container.id, tail=LOG_LINES, timestamps=True),
        "container.json": lambda: _container(engine, container.id, secrets),
        "processes.txt": lambda: _processes(engine, container),
    }


def _container(engine: Engine, container_id: str, secrets: Sequence[str]) -> str:
    document = dict(engine.inspect(container_id) or {})
    config = dict(document.get("Config") or {})
    pairs = (pair.partition("=") for pair in config.get("Env") or ())
    config["Env"] = [f"{name}={'(secret)' if name in secrets and value else value}" for name, _, value in pairs]
    return as_json({**document, "Config": config})


def _processes(engine: Engine, container: Container) -> str:
    if not container.running:
        # When the first process of a container ends, the kernel ends all others.
        return f"the container is {container.state} (exit code {container.exit_code}): no process of it is left"
    processes = engine.processes(container.id)
    rows = [(str(one.pid), str(one.parent), one.state, f"{one.memory >> 20}M", one.command) for one in processes]
    lines = table([("PID", "PARENT", "STATE", "MEMORY", "COMMAND"), *rows], right=(0, 1, 3))
    zombies = sum(one.zombie for one in processes)
    return "\n".join(
        [*lines, f"{counted(len(processes), 'process', 'processes')}, {zombies} of them zombies (state Z)"]
    )


def _memory(engine: Engine, container: Container | None) -> str:
    parts = [Path("/proc/meminfo").read_text("utf-8")] if engine.info().local else []
    if container and (record := engine.read_file(container.id, RECORD)):
        parts.append(f"how it went ({RECORD}):\n" + record.decode(errors="replace"))
    return "\n".join(parts) or "not available: the memory guard wrote no record, and the engine is on another machine"


def _gpu(engine: Engine, container: Container | None) -> str:
    """By the container's own nvidia-smi, else by this machine's."""
    if container and container.running:
        done = engine.exec(container.id, ["sh", "-c", "command -v nvidia-smi && exec nvidia-smi -q"], timeout=STUCK)
        if done.code == 0:
            return done.stdout.decode(errors="replace")
    return _printed_here(engine, "nvidia-smi", "-q")


def _printed_here(engine: Engine, *argv: str) -> str:
    """What a program of the engine's machine prints, if that is this one."""
    if not engine.info().local:
        raise EngineError("the engine is on another machine")
    return process.run(argv, timeout=STUCK).stdout.decode(errors="replace")


def _project(deployment: Deployment) -> dict[str, str]:
    """The files of the project that decide what runs, and the newest build logs."""
    names = ("envgen.yaml", "envgen.local.yaml", "envgen.lock", deployment.profile.dockerfile)
    compose = or_none(lambda: deployment.compose.files) or [deployment.root / str(deployment.profile.compose_file)]
    there = {f"project/{name}": deployment.root / str(name) for name in names}
    there |= {f"project/compose/{path.name}": path for path in compose}
    logs = [path for path in state_dir(deployment.root, "logs").glob("*.log") if not path.is_symlink()]
    there |= {f"logs/{path.name}": path for path in sorted(logs, key=lambda one: one.lstat().st_mtime)[-LOGS:]}
    return {name: _text(partial(_end, path)) for name, path in there.items() if os.path.lexists(path)}


def _end(path: Path) -> str:
    """The end of a file. Links are not followed: they may lead to private files."""
    with files.opened(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        content = file.read(LOG_BYTES)
    return (
        f"(left out: {len(content)} bytes that are not text)" if b"\0" in content else content.decode(errors="replace")
    )
