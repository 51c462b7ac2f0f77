"""A project's own checks: scripts in ``checks/`` that run inside the container. A broken script is
a finding.

Scripts in ``checks/deep/`` may compile: they run only with `doctor --deep`, and have more time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envgen.binding import bind
from envgen.doctor.model import Context, Finding, Remedy, Severity, warning
from envgen.doctor.remedies import envgen
from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import ExecResult
from envgen.errors import EngineError, EnvgenError
from envgen.render.environment import with_start_up
from envgen.text import duration, last_printed, reason_of, shorten, visible

FOLDER, DEEP = "checks", "checks/deep"
LIMIT, DEEP_LIMIT = (
    30.0,
    7200.0,
)  # seconds for one script; two cores compile the fused MoE in an hour
TOLD = 60.0  # seconds after which a script that still runs is reported
LARGEST = 1 << 20  # bytes of a script, and of its answer
RUN_WITH = {".py": ("python3", "-"), ".sh": ("sh", "-s")}
WORDS = {severity.word: severity for severity in Severity}
Ask = Callable[[list[str], bytes], "ExecResult"]


class Unfinished(Exception):
    """A check did not come to its end, and is not at fault: its time was over, or its container
    ended.
    """


def from_folder(
    context: Context,
    root: Path,
    engine: Engine,
    folder: str = FOLDER,
    show: Callable[[str], None] | None = None,
) -> list[Finding]:
    """The findings of each script of a folder, run as the service runs programs; none without a
    running container.

    ``show``: gets what scripts of `checks/deep/` write and, each minute, how long one has run.
    """
    container, limit = context.container, DEEP_LIMIT if folder == DEEP else LIMIT
    if container is None or container.state != "running":
        return []

    def on_line(line: str) -> None:
        if show is not None and not line.startswith("{"):
            show(shorten(visible(line), 150))

    def ask(argv: list[str], stdin: bytes) -> ExecResult:
        began, over = time.monotonic(), threading.Event()

        def tell() -> None:
            while show is not None and not over.wait(TOLD):
                show(
                    f"{script.name} has run for {duration(time.monotonic() - began)}; its limit is {duration(limit)}"
                )

        in_background(tell)
        try:
            answer = engine.exec(
                container.id, with_start_up(argv), stdin=stdin, timeout=limit, on_line=on_line
            )
        except EngineError as error:
            if time.monotonic() - began < limit:
                raise
            raise Unfinished(
                f"no end within {duration(limit)}; what it has compiled stays for the next run"
            ) from error
        finally:
            over.set()
        if answer.code == 137:  # killed: with its container, or alone
            now = engine.container(container.id)
            if now is None or now.state != "running":
                raise Unfinished("its container ended")
        return answer

    findings = list[Finding]()
    for script in scripts_in(root / folder):
        if show is not None:
            show(f"{folder}/{script.name}, for at most {duration(limit)}")
        findings += run_script(script, ask, context, folder)
    return findings


def scripts_in(folder: Path) -> list[Path]:
    """The scripts in a folder, without names that begin with `_` or `.`."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return [path for path in files if path.name[0] not in "._" and path.suffix in RUN_WITH]


def run_script(script: Path, ask: Ask, context: Context, folder: str = FOLDER) -> list[Finding]:
    """The script's findings, or one that it is broken."""
    name, findings = f"{folder}/{script.name}", list[Finding]()
    try:
        if script.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        answer = ask(list(RUN_WITH[script.suffix]), script.read_bytes())
        seen = (
            f"exit code {answer.code}; {last_printed(answer.stderr, answer.code)}"
            if answer.code
            else ""
        )
        try:
            findings = read_answer(answer.stdout, context)
        except ValueError:
            if not seen:  # of one that was killed, its end says more than what it did not print
                raise
    except (EnvgenError, OSError, ValueError) as problem:
        seen = reason_of(problem).splitlines()[0]
    except Unfinished as end:
        again = envgen(context, "doctor", context.service, *(["--deep"] if folder == DEEP else []))
        findings, seen = (
            [warning(f"the check {name} did not finish", str(end), "findings", again)],
            "",
        )
    if seen:
        edit = Remedy(f"${{EDITOR:-vi}} {name}")
        findings.append(
            warning(f"the check {name} is broken", seen[:300], "findings", edit, case="broken")
        )
    return [replace(finding, check=name) for finding in findings]


@dataclass(frozen=True)
class Printed:
    """A finding as a script prints it: that of `doctor --json`."""

    severity: str
    title: str
    seen: str = ""
    expected: str = ""
    remedy: Any = None  # as in `doctor --json`, or just the command
    evidence: Mapping[str, Any] = field(default_factory=dict)


def read_answer(data: bytes, context: Context) -> list[Finding]:
    """Read a script's document: {"findings": [...]} as in `doctor --json`; what else it has is its
    own. ValueError if
    invalid."""
    if len(data) > LARGEST:
        raise ValueError(f"it printed more than {LARGEST} bytes")
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        shown = data[:100].decode("utf-8", "replace").strip() or "nothing"
        raise ValueError(f"it printed no JSON document: {shown!r}") from None
    nodes = document.get("findings") if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        raise ValueError('its document lacks "findings", a list')
    return [_finding(node, f"finding {number}", context) for number, node in enumerate(nodes, 1)]


def _finding(node: Any, where: str, context: Context) -> Finding:
    printed = bind(Printed, node, where)
    severity = WORDS.get(printed.severity)
    if severity is None:
        raise ValueError(f"{where}.severity is one of {', '.join(WORDS)}")
    if not printed.title.strip():
        raise ValueError(f"{where} has no title")
    remedy = envgen(context, "exec", context.service) if severity > Severity.INFO else None
    if printed.remedy is not None:
        fields = printed.remedy if isinstance(printed.remedy, Mapping) else {"text": printed.remedy}
        kind, text = fields.get("kind", "command"), fields.get("text")
        if (
            not isinstance(text, str)
            or not text.strip()
            or "\n" in text
            or kind not in ("command", "profile")
        ):
            raise ValueError(
                f'{where}.remedy is {{"kind": "command" or "profile", "text": one line}}'
            )
        remedy = Remedy(text, is_line=kind == "profile")
    return Finding(
        severity, printed.title, printed.seen, printed.expected, remedy, dict(printed.evidence)
    )
