"""Commands that build and compare images: `envgen build`, `verify`, `inspect`, `diff`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click

from envgen.app import build as builds
from envgen.app import provision
from envgen.app.build import BuildOutcome, Job
from envgen.app.provision import Lacking
from envgen.app.session import Session
from envgen.app.status import drift
from envgen.cli.common import answer, json_option, print_json, reporting, wants_json, warn_of_unused
from envgen.engine.buildx import OWN, BuildResult, BuildStep, Options, argv_of
from envgen.engine.client import Engine, connect
from envgen.errors import BuildError, EngineError, ExitCode, UsageError
from envgen.lock.image import Manifest, read
from envgen.lock.model import changes, facts, read_lock
from envgen.profile.model import Platform
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import read_label
from envgen.serve.launch import in_profile
from envgen.text import Loudness, counted, progress, short_id, shorten

HEARTBEAT = 30.0  # seconds without output after which a pipe or a log gets a line for each running step
SHOWN_LINES = 25  # of a step that failed
SHOWN_DIFFERENCES = 40
_SHARED = ("image ", "git ", "file ", "patch ", "series ")  # inputs of a lock that several profiles may share


class Display:
    """Prints a line for each finished step; on a terminal (``live``) the last line shows the running one.

    ``names``: what to show for each instruction. ``beside``: what happens at the same time.
    """

    def __init__(
        self, names: Mapping[str, str], out: TextIO | None = None, *, live: bool = False,
        beside: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._names = names
        self._beside = beside
        self._out = out or sys.stderr
        self._live = live and self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._running: dict[int, tuple[BuildStep, float]] = {}
        self._last_print = time.monotonic()

    def step(self, step: BuildStep) -> None:
        """Called when a step begins, writes something or ends."""
        name = self._name_of(step)
        if not step.ended:
            if name:
                self._running.setdefault(id(step), (step, time.monotonic()))
            return
        self._running.pop(id(step), None)
        if name:
            outcome = "cached" if step.cached else f"{step.seconds:.1f}s"
            if step.error:
                outcome = "FAILED" if step.failed else "cancelled"
            self._print(_line(outcome, name))

    def tick(self) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        if not self._running or now - self._last_print <= (0.2 if self._live else HEARTBEAT):
            return
        rows = []
        for step, since in self._running.values():
            status = f": {step.status.strip()}" if step.status.strip() else ""
            rows.append(_line(f"… {now - since:.0f}s", shorten(self._name_of(step), 70) + status))
        if beside := self._beside():
            rows.append(_line("beside it", beside))
        if self._live:
            more = len(rows) - 1 - bool(beside)
            self._print(rows[0] + (f" (and {more} more)" if more else "") + (f" | {beside}" if beside else ""), end="")
        else:
            self._print("\n".join(rows))

    def close(self) -> None:
        """Clear the line of the running step."""
        self._print("", end="")

    def _name_of(self, step: BuildStep) -> str:
        """What to show for a step; "" for one that is not worth a line."""
        kind, _, image = step.instruction.partition(" ")
        if step.internal:  # the last one writes gigabytes, without a word of its own
            return "Exports the image" if step.name.startswith("exporting to ") else ""
        if kind == "FROM" and not step.failed:  # not when the image was already there
            return "" if step.ended and step.seconds < 0.1 else f"Base image {image}"
        return self._names.get(step.instruction, step.title if kind == "RUN" or step.failed else "")

    def _print(self, text: str, end: str = "\n") -> None:
        if Loudness.quiet:
            return
        if self._live:
            getattr(self._out, "raw", self._out).write("\r\x1b[K")  # clear the line of the running step
            text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        self._last_print = time.monotonic()
        print(text, file=self._out, end=end, flush=True)


def _line(outcome: str, name: str) -> str:
    """``  12.3s  Installs rich``."""
    return f"{outcome:>9}  {shorten(name, 150)}"


# --- build ------------------------------------------------------------------------------------------------------------


@click.command()
@reporting
@click.option("--no-cache", is_flag=True, help="Run every step again, without BuildKit's cache.")
@click.option("--pull", is_flag=True, help="Pull the base image first if the registry has a newer one.")
@click.option("--tag", "tags", multiple=True, metavar="REF", help="An additional tag of the image (repeatable).")
@click.option("--push", is_flag=True, help="Push to the registries of --tag instead of loading the image.")
@click.option("--cache-from", multiple=True, metavar="SPEC", help="A cache to read, in buildx syntax.")
@click.option("--cache-to", multiple=True, metavar="SPEC", help="A cache to write, in buildx syntax.")
@click.option(
    "--platform", type=click.Choice([one.value for one in Platform]), help="Short for --set base.platform=..."
)
@click.option("--max-jobs", type=click.IntRange(1, 9999), metavar="N",
              help="At most N compilers at once (default: build.max_jobs).")  # fmt: skip
@click.option("--unlocked", is_flag=True, help="Ignore envgen.lock; use the versions that are current now.")
@click.option("--target", default="", metavar="STAGE", help="Stop after this stage; the image is IMAGE-STAGE.")
@click.option("--dry-run", is_flag=True, help="Show what would be built; change nothing.")
def build(
    session: Session, platform: str | None, unlocked: bool, target: str,
    dry_run: bool, **chosen: Any,
) -> int:  # fmt: skip
    """Render a profile, then build its image with BuildKit.

    Does nothing if the image is up to date. The full output of each build is kept in .envgen/logs. A production profile
    needs all of its inputs in envgen.lock.

    The variable BUILDX_BUILDER selects another builder; it pulls the base image from the registry.

    \b
    Examples:
      envgen build --profile dev
      envgen build --set cuda.arch_list=12.1a --dry-run
      envgen build -p prod --push --tag registry.example/vllm:1 --cache-to type=registry,ref=registry.example/cache
    """
    typed = session  # --platform may name what the profile has
    if platform:
        session = session.with_(sets=(*session.sets, f"base.platform={platform}"))
    options = Options(**chosen, builder=_builder())
    if options.push and not options.tags:
        raise UsageError("--push needs a --tag that names a registry", hint="add --tag registry.example/name:tag")
    job = _job(session, target, unlocked=unlocked)
    warn_of_unused(typed)
    if dry_run:
        return _dry_run(job, options)
    with closing(Display(job.steps, live=not wants_json())) as display:
        outcome = builds.build(
            job, on_step=display.step, on_tick=display.tick, options=options, unlocked=unlocked
        )  # fmt: skip
    _show(outcome)
    if files := drift(session):
        progress(f"out of date: {', '.join(files)}; update with: {job.deployment.profile.render_command}")
    return ExitCode.OK


def _builder() -> str:
    return os.environ.get("BUILDX_BUILDER") or OWN


def _job(session: Session, target: str = "", *, unlocked: bool = False) -> Job:
    return builds.job_of(session.deployment(), target, unlocked=unlocked)


def provide(session: Session, lacking: Lacking) -> None:
    """Make what services lack, as the first step of another command: prints to stderr."""

    def display(job: Job, beside: Callable[[], str]) -> Display:
        return Display(job.steps, live=True, beside=beside)

    provision.provide(session, lacking, Options(builder=_builder()), display, lambda one: _show(one, to_stderr=True))


def _show(outcome: BuildOutcome, *, to_stderr: bool = False) -> None:
    """Print how the build ended. BuildError if it failed."""
    job, result = outcome.job, outcome.result
    as_json = wants_json() and not to_stderr
    if result and not result.ok:
        raise _failure(outcome, result, quiet=as_json)
    if as_json:
        print_json(_document(outcome))
    elif result is None:
        click.echo(f"{job.image} is up to date ({short_id(outcome.image_id)})", err=to_stderr)
    else:
        built = f"built {job.image} ({short_id(result.image_id)})"
        if outcome.pushed:  # a pull by digest needs all of it
            built = f"pushed {', '.join(outcome.pushed)} ({result.image_id})"
        steps = f"{counted(len(result.steps), 'step')}, {result.cached} from the cache"
        click.echo(f"{built} in {result.seconds:.1f} s: {steps}", err=to_stderr)
        if not outcome.pushed and any(service.cluster for service in job.deployment.profile.services.values()):
            progress(f"copy it to the other machines: envgen nodes push --image {job.deployment.profile.chosen}")


def _failure(outcome: BuildOutcome, result: BuildResult, quiet: bool) -> BuildError:
    """Print the last lines of the failed step; the error has the step, the cause and the fix."""
    cause, step = outcome.cause, result.failed
    for line in [] if quiet else result.last_lines[-SHOWN_LINES:]:
        progress(f"    {shorten(line.strip(), 300)}", always=True)
    what = f"the build of {outcome.job.image} failed"
    if step:
        code = f" (exit code {step.exit_code})" if step.exit_code is not None else ""
        name = outcome.job.steps.get(step.instruction) or step.title
        what += f" in step {shorten(name, 120)!r}{code}"
    if cause:
        what += f"\n    {cause.cause}:\n    > {shorten(cause.evidence.strip(), 300)}"
    elif step and step.exit_code is None:
        what += f"\n    {shorten(step.error, 500)}"
    hints = [in_profile(cause.cure, outcome.job.deployment.profile, "SERVICE")] if cause else []
    error = BuildError(what, hint="; ".join([*hints, f"the whole output is in {outcome.log}"]))
    error.details = _document(outcome)
    return error


def _document(outcome: BuildOutcome) -> dict[str, Any]:
    result = outcome.result
    head = {**_head(outcome.job), "ok": True, "up_to_date": True, "image_id": outcome.image_id}
    if result is None:
        return head
    failed = result.failed
    failure = {
        "step": failed.title if failed else None,
        "exit_code": failed.exit_code if failed else None,
        "lines": result.last_lines[-SHOWN_LINES:],
        "error": result.error or None,
        "cause": outcome.cause.data() if outcome.cause else None,
    }
    return {
        **head,
        "ok": result.ok,
        "up_to_date": False,
        "changed": list(map(asdict, outcome.changed)),
        "pushed": list(outcome.pushed),
        "seconds": round(result.seconds, 3),
        "steps": [
            {"number": n, "name": s.title, "seconds": s.seconds, "cached": s.cached, "error": s.error}
            for n, s in enumerate(result.steps, 1)
        ],
        "compilers": outcome.compilers or None,
        "log": outcome.log,
        "failure": None if result.ok else failure,
    }


def _head(job: Job) -> dict[str, Any]:
    return {"profile": job.deployment.profile.name, "image": job.image, "digest": job.deployment.rendered.digest}


def _dry_run(job: Job, options: Options) -> int:
    """Print the plan. Works without an engine, but then not whether the image is up to date."""
    engine: Engine | None
    try:
        engine, trouble = connect(), ""
    except EngineError as error:
        engine, trouble = None, str(error)
    how = job.compilers(engine, options)
    argv = argv_of(builds.request_of(job, options))
    current = bool(engine and builds.up_to_date(job, options, engine))
    changed = job.deployment.outdated if engine and not current and not job.target else []
    if trouble and not wants_json():
        progress(f"no engine: {trouble}")
    plan = {**_head(job), "dry_run": True, "up_to_date": current, "argv": argv}
    return answer(
        {**plan, "changed": list(map(asdict, changed)), "compilers": how, "engine": trouble or "ok"},
        [
            f"image    {job.image}{' (up to date: nothing would be built)' if current else ''}",
            *(f"changed  {change}" for change in changed),
            f"digest   {job.deployment.rendered.digest}",
            f"files    {', '.join(sorted(job.deployment.rendered.files))} into {job.shown(job.folder)}",
            how,
            f"command  {shlex.join(argv)}",
        ],
    )


# --- verify -----------------------------------------------------------------------------------------------------------


@click.command()
@reporting
def verify(session: Session) -> int:
    """Build the image of a profile twice without cache, in two folders, and compare the two images.

    Compares file content, modes, owners, links and the image configuration, but not times. Lists each difference and
    exits with 1 if there is one. Both images are removed; the profile's own image stays as it is.

    \b
    Example:
      envgen verify -p prod
    """
    verified = builds.verify(session)
    ids, found = verified.ids, verified.found
    document = {
        "same_content": not found, "same_id": ids[0] == ids[1], "image_ids": list(ids),
        "seconds": [round(seconds, 1) for seconds in verified.seconds], "differences": list(map(asdict, found)),
    }  # fmt: skip
    return answer(document, _verdict(verified), ExitCode.FINDINGS if found else ExitCode.OK)


def _verdict(verified: builds.Verified) -> Iterator[str]:
    ids, found = verified.ids, verified.found
    yield "different content" if found else "same content"
    yield f"same ID: {ids[0]}" if ids[0] == ids[1] else f"different IDs: {ids[0]} and {ids[1]}"
    yield from (f"  {difference}" for difference in found[:SHOWN_DIFFERENCES])
    if len(found) > SHOWN_DIFFERENCES:
        progress(f"{len(found) - SHOWN_DIFFERENCES} more; --json lists all")


# --- inspect ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("image", required=False)
@reporting
def inspect(session: Session, image: str | None) -> int:
    """Print the inputs that are recorded in IMAGE (default: the image of the profile).

    \b
    Example:
      envgen inspect mxfp4:prod
    """
    manifest = read(connect(), image or session.profile().image_name)
    document = asdict(manifest)
    return answer({key: document[key] for key in ("image", "id", "labels", "inputs", "open")}, _recorded(manifest))


def _recorded(manifest: Manifest) -> Iterator[str]:
    yield f"{manifest.image} ({short_id(manifest.id)})"
    labels = {name: value for name, value in manifest.labels.items() if name != INPUTS_LABEL}
    shown = {**read_label(manifest.labels.get(INPUTS_LABEL, "")), **labels, **manifest.inputs}
    for name, value in sorted(shown.items()):
        if not name.endswith(" sha256"):
            yield f"  {name}  {value or '(none)'}"
    for text in manifest.open:
        progress(f"not locked: {text}")
    if not manifest.inputs:
        progress("built without a lock: exact versions are not recorded")


# --- diff -------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("first")
@click.argument("second")
@json_option
def diff(first: str, second: str) -> int:
    """List the inputs that differ between FIRST and SECOND. Each is a lock file or an image.

    Exits with 1 if they differ.

    \b
    Example:
      envgen diff mxfp4:prod envgen.lock
    """
    found = changes(*_comparable(_side(first), _side(second)))
    answer({"changes": list(map(asdict, found))}, map(str, found))
    if not wants_json():
        progress(counted(len(found), "input differs", "inputs differ") if found else "all inputs are the same")
    return ExitCode.FINDINGS if found else ExitCode.OK


Side = tuple[str, Mapping[str, str]]  # the profile of an image ("" for a lock), and the inputs


def _side(name: str) -> Side:
    if Path(name).is_file():
        return "", facts(read_lock(Path(name)))
    manifest = read(connect(), name)
    if not manifest.inputs:
        raise UsageError(f"{name} was built without a lock, so it records no inputs to compare")
    return manifest.profile, manifest.inputs


def _comparable(one: Side, two: Side) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The inputs under the same names: a lock is reduced to the profile and platform of the image beside it."""
    if bool(one[0]) == bool(two[0]):
        return one[1], two[1]
    (profile, image), (_, lock) = (one, two) if one[0] else (two, one)
    platforms = {word for name in image for word in name.split(" ")[:1] if word.startswith("linux/")}
    kept = {}
    for name, value in lock.items():
        if name.startswith(_SHARED):
            if name in image:  # the others belong to other profiles
                kept[name] = value
        elif name.startswith(f"{profile} "):
            rest = name.removeprefix(f"{profile} ")
            if rest.split(" ")[0] in platforms:
                kept[rest] = value
    return (image, kept) if one[0] else (kept, image)
