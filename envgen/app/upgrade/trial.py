"""A candidate is started in place of what runs, measured beside it, and kept or left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from envgen.app import images
from envgen.app.answers import GOOD
from envgen.app.cluster.machines import all_machines, head_of
from envgen.app.measure import MeasureOptions, results_folder
from envgen.app.predict import ask_release
from envgen.app.session import VARIANT_LABEL, Candidate, Session
from envgen.app.stage import VariantSwitch
from envgen.app.sweep import measured_row
from envgen.app.up import check_all, main_service
from envgen.app.upgrade import journal, paper
from envgen.app.upgrade.ahead import compile_ahead
from envgen.app.upgrade.journal import Pending
from envgen.bench import record
from envgen.bench.tools import Matrix
from envgen.binding import JsonObject
from envgen.deployment import Deployment, LiveService
from envgen.engine.process import terminable
from envgen.errors import EnvgenError, NotFoundError, Problem, RefusedError
from envgen.lock.model import FILE_NAME as LOCK_FILE
from envgen.lock.model import Lock, load, lock_text, read_lock
from envgen.profile import tree
from envgen.profile.flags import takes_no_prompt
from envgen.render.outputs import render_project
from envgen.serve.preflight import PreflightError
from envgen.text import progress

NOTHING = "-"  # in place of a variant: the service did not run
Row = JsonObject
_READ = {"answers", "figures", "kernels", "verdict"}  # of a row from a file
Keep = Callable[[], bool]  # asks whether a good candidate is kept
MATRIX = Matrix(pp=(256,), tg=(64,), runs=3)


@dataclass
class UpgradeTrial:
    """``session``: of the project as it is; ``candidate``: as it could become.

    ``command`` goes on with it after a break. ``rows``: service -> what was measured of the old and
    of the new one.
    """

    session: Session
    candidate: Session
    command: str
    slower: float = 5.0
    measures: bool = True
    rows: dict[str, list[Row]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)  # why it is not kept
    resumed: bool = False

    @property
    def deployment(self) -> Deployment:
        return self.session.deployment()

    def run(self, keep: Keep) -> bool:
        """Try it, and keep it if it is good and ``keep`` agrees; else what ran before runs again.
        Returns whether it was kept.
        """
        root = self.deployment.root
        profile = self.deployment.profile.name
        with terminable(), journal.alone(root, profile):
            before = self._before()
            self._require_ready(list(before.services))
            if before.rows and not self.resumed:  # a server runs, and was measured
                compile_ahead(self.session, self.candidate)
            made = self.candidate.tried
            journal.save(root, profile, before, made.text, lock_text(made.lock))
            with ExitStack() as stack:
                stages = {name: self._stage(name, before) for name in before.services}
                for stage in stages.values():
                    stack.enter_context(stage)
                for name, stage in stages.items():
                    self._show(name, stage, before)
                    if self.reasons:
                        break
                kept = not self.reasons and keep()
                if kept:
                    keep_files(self.session, self.candidate)
                    for stage in stages.values():
                        stage.before = stage.now  # nothing to start again
            if kept:  # its image gets the profile's name
                fresh = self.session.with_()
                images.remember(fresh, adopted(fresh))
            journal.forget(root, profile)
        return kept

    def _before(self) -> Pending:
        """What runs, or what ran before a trial that was broken off, with its measurements."""
        deployment = head_of(self.deployment)
        known = deployment.profile.services.keys()
        earlier = journal.pending(deployment.root, deployment.profile.name)
        if earlier and earlier.services.keys() <= known:
            self.resumed = True
            rows = {key: row for key, row in earlier.rows.items() if row.keys() >= _READ}
            return replace(earlier, command=self.command, of=self.candidate.tried.of, rows=rows)
        services = services_of(deployment)
        rows = {}
        if not services and self.measures:
            services = {main_service(deployment.profile): NOTHING}
            progress("nothing runs, so the candidate is compared with nothing")
        for name, variant in services.items():
            if variant != NOTHING and self._is_measured(name):
                rows[name] = self._row(self.session.with_(variant=variant), name, lambda: 0.0)
        return Pending(self.command, self.candidate.tried.of, services, rows)

    def _require_ready(self, names: Sequence[str]) -> None:
        """Refuse, with nothing stopped, what could not start: PreflightError, or RefusedError for a
        machine without the image.
        """
        machines = [
            one for name in names for one in all_machines(self.candidate.deployment(), name)
        ]
        for machine in machines:
            if not machine.is_current:
                image = machine.profile.image_name
                there = " ".join(machine.docker("load"))
                message = machine.named(f"the image {image} is not there")
                raise RefusedError(message, hint=f"docker save {image} | {there}")
        for one in check_all(self.candidate.deployment(), names, predict=self.measures):
            asked = LiveService(self.deployment, one.service.name)
            old = ask_release(asked, replaced=True) if self.measures else one.notes
            for line in apart(old, one.notes):
                progress(line)

    def _stage(self, name: str, before: Pending) -> VariantSwitch:
        stage = VariantSwitch(self.session, name)
        variant = before.services[name]
        stage.before = None if variant == NOTHING else self.session.with_(variant=variant)
        if not self.resumed:  # else the candidate may run
            stage.now = stage.before
        return stage

    def _is_measured(self, name: str) -> bool:
        service = self.session.profile().services[name]
        asks = service.ready is not None and bool(service.host_ports)
        return self.measures and asks and not takes_no_prompt(service.flag)

    def _show(self, name: str, stage: VariantSwitch, before: Pending) -> None:
        """Start the candidate of one service, and judge it."""
        variant = before.services[name].replace(NOTHING, "")
        named = replace(self.candidate.tried, tag="")  # Compose compares the name, too
        shown = self.candidate.with_(candidate=named, variant=variant)

        def show() -> float:
            with lent_name(self.session, self.candidate, name):
                return stage.show(shown)

        progress(f"{name}: starting the candidate in place of what runs")
        if not self._is_measured(name):
            try:
                show()
            except EnvgenError as error:
                self.reasons += [str(error)]
            return
        old = before.rows.get(name)
        row = self._row(shown, name, show, old)
        self.rows[name] = [old, row] if old else [row]
        if old and (reason := judged(old, row, self.slower)):
            self.reasons.append(reason)
        elif not old and row["seconds"] is None:
            self.reasons.append(row["error"])

    def _row(
        self, session: Session, name: str, show: Callable[[], float], old: Row | None = None
    ) -> Row:
        """The measurements of a service."""
        asked = MeasureOptions(session, name)
        label = "candidate" if session.candidate else "now"
        matrix = MATRIX if old is None or old["figures"] else None
        reference = None
        if old and old["answers"]:
            reference = record.resolve(results_folder(self.session.file), old["answers"])
        row = measured_row(asked, label, show, reference, matrix, False)
        if label == "now" and row["verdict"] and row["cause"]:
            progress(f"  its speed is not compared: {row['cause']}")  # no tool in the image
            row["cause"] = ""
        return row


def services_of(deployment: Deployment) -> dict[str, str]:
    """The services that run, with their variants."""
    return {
        one.service: one.labels.get(VARIANT_LABEL, "")
        for one in deployment.containers(all=False)
        if one.service in deployment.profile.services
    }


def asked_before(session: Session, made: Session) -> Iterator[str]:
    """What the candidate's releases say of the services otherwise than those that run: their
    Python is asked in the image that runs. RefusedError for what they refuse.
    """
    try:
        code = list(paper.code_of(made))
    except EnvgenError as error:
        yield f"  flags and kernels are known after the build: {error.message}"
        return
    head = head_of(session.deployment())
    asked = services_of(head) or {main_service(head.profile): ""}
    for name, variant in asked.items() if code else ():
        form = session.with_(variant=variant)
        service = LiveService(head_of(form.deployment(), name), name)
        new = _asked(session, service, code)
        yield from apart(ask_release(service, replaced=True), new)


def ask_before_build(session: Session, names: Sequence[str]) -> None:
    """Ask what the lock names, in the image that is there, what it makes of the services' flags.
    RefusedError for what it refuses; what can't be known now is asked after the build.
    """
    deployment = session.deployment()
    before = images.remembered(deployment, deployment.image)
    if before is None or images.fitting(deployment):
        return
    try:
        code = list(paper.code_of(session, Candidate(*before)))
    except EnvgenError:
        return
    for name in names or deployment.profile.services:
        _asked(session, LiveService(head_of(deployment, name), name), code)


def _asked(session: Session, service: LiveService, code: Sequence[bytes]) -> list[str]:
    """The notes of releases that are not in the image yet. RefusedError for what they refuse."""
    try:
        return ask_release(service, replaced=True, code=code)
    except PreflightError as error:
        _, *refused = error.problems
        hint = f"change it in {session.loaded().project.file.name}, and type the same again"
        refused[-1] = replace(refused[-1], hint=hint)
        first = Problem("nothing was built, and what runs was not touched:")
        raise RefusedError(problems=(first, *refused)) from None


def apart(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The notes in which two releases differ."""
    yield from (f"  now: {one}" for one in old if one not in new)
    yield from (f"  then: {one}" for one in new if one not in old)


@contextmanager
def lent_name(session: Session, made: Session, service: str) -> Iterator[None]:
    """Inside, the candidate's image has the profile's name on the machines of a service, and what
    had it another one. Where this is broken off, `up` finds the image that fits again.
    """
    machines = all_machines(made.deployment(), service)
    name = session.profile().image_name
    before = [(one.engine, one.engine.image(name)) for one in machines]
    for engine, image in before:
        if image is not None:
            engine.tag(image.id, name + images.ASIDE)
        engine.tag(made.profile().image_name, name)
    try:
        yield
    finally:
        for engine, image in before:
            if image is not None:
                engine.tag(image.id, name)
                engine.remove_image(name + images.ASIDE)


def require_way_out(session: Session) -> None:
    """RefusedError if what runs is not what the project says: it could not be started again."""
    deployment = adopted(session)
    running = deployment.containers(all=False)
    image = deployment.image
    problems = list(deployment.image_problems)
    if image and not journal.pending(deployment.root, deployment.profile.name):
        others = [one.name for one in running if one.image_id != image.id]
        problems += [Problem(f"{name} runs another image than the profile's") for name in others]
    if running and problems:
        head = Problem("what runs now could not be started again, so nothing is tried:")
        hint = f"envgen up --build --recreate {deployment.profile.chosen}, then this again"
        last = replace(problems[-1], hint=hint)
        raise RefusedError(problems=(head, *problems[:-1], last))


def judged(old: Row, new: Row, slower: float) -> str:
    """Why a candidate is not kept; "" if it is good."""
    if new["cause"]:
        return str(new["error"])
    if new["verdict"] not in GOOD:
        return f"its answers are {new['verdict']}"
    for label, before in old["figures"].items():
        if label.endswith("t/s") and label in new["figures"]:
            percent = 100 * (new["figures"][label] - before) / before
            if percent < -slower:
                return f"{label} {percent:+.0f} %, and {slower:g} % slower is too slow"
    return ""


# --- keeping it


def keep_files(session: Session, made: Session) -> None:
    """Write the candidate's project file, lock and rendered files, all together. RefusedError if
    the project has changed meanwhile.
    """
    project = made.loaded(local=False).project
    root = project.root
    tried = made.tried
    if journal.state_of(project) != tried.of:
        message = f"{project.file.name} or {LOCK_FILE} has changed since the trial began"
        raise RefusedError(message, hint="the same command again tries what they say now")
    images.remember(session, head_of(session.deployment()))
    texts = {project.file.name: tried.text, LOCK_FILE: lock_text(tried.lock)}
    rendered = render_project(project, lock=tried.lock)
    texts |= {path: data.decode() for path, data in rendered.items() if (root / path).is_file()}
    journal.write_together(root, made.profile().name, texts)


def adopted(session: Session) -> Deployment:
    """The profile on its head; on each machine the image that fits has the profile's name, and the
    one that had it stays as the one before.
    """
    head, *_ = [images.adopt(one) for one in all_machines(session.deployment())]
    return head


# --- the way back


def upgrade_state(deployment: Deployment) -> tuple[str | None, str | None]:
    """The command of a trial under way, and the ID of the image that `--back` leads to."""
    trial = journal.pending(deployment.root, deployment.profile.name)
    image = deployment.engine.image(deployment.profile.image_name + images.BEFORE)
    kept = images.remembered(deployment, image)
    return trial.command if trial else None, image.id if image and kept else None


def way_back(deployment: Deployment) -> tuple[str, Lock]:
    """The project file and the lock of the image before. NotFoundError if there is no way back."""
    name = deployment.profile.image_name + images.BEFORE
    image = deployment.engine.image(name)
    kept = images.remembered(deployment, image)
    if image is None or kept is None:
        what = f"no image is named {name}" if image is None else f"nothing tells what {name} is of"
        raise NotFoundError(
            f"there is no way back: {what}", hint="git log -p envgen.yaml envgen.lock"
        )
    return kept


def backwards(session: Session) -> Session:
    """The session of what was there before. RefusedError if the image before is not what the
    project would be then: it was edited since.
    """
    deployment = adopted(session)
    text, lock = way_back(deployment)
    project = session.loaded(local=False).project
    now = tree.file_text(project.file, project.file.name)
    present = images.remembered(deployment, deployment.image)
    if present is None or present[0] != now:
        text = _with_inputs_of(session, now, text)
    current = load(project.root) or Lock()
    if present is None or present[1] != current:
        python = {**current.python, deployment.profile.name: lock.python[deployment.profile.name]}
        parts = {part: {**vars(current)[part], **vars(lock)[part]} for part in ("images", "git")}
        lock = replace(current, python=python, **parts)
    made = session.with_(candidate=Candidate(text, lock, images.BEFORE, journal.state_of(project)))
    then = head_of(made.deployment())
    if not then.is_current:
        changed = [Problem(str(one)) for one in then.outdated]
        head = Problem("the image before does not have what the project says since:")
        hint = f"envgen build {session.profile().chosen}"
        raise RefusedError(problems=(head, *changed, Problem("nothing was changed", hint=hint)))
    return made


def _with_inputs_of(session: Session, now: str, then: str) -> str:
    """The text ``now`` with the inputs of the image that ``then`` has."""
    profile = session.profile().name
    plan = paper.Draft(session, Lock(), now)
    earlier = paper.Draft(session, Lock(), then).made
    old = earlier.loaded(local=False).trees[profile]
    new = session.loaded(local=False).trees[profile]
    for path, value, _ in tree.written(old):
        if path[0] not in ("sources", "base"):
            continue
        node = new.at(path)
        if node is not None and node.text not in ("", value):
            plan.set(".".join(path), value)
    return plan.text


def resumed(session: Session, command: str) -> Session | None:
    """The candidate of a trial of the same command that was broken off; None if there is none, or
    the project has changed since.
    """
    project = session.loaded(local=False).project
    profile = session.profile().name
    earlier = journal.pending(project.root, profile)
    if not earlier or (earlier.command, earlier.of) != (command, journal.state_of(project)):
        return None
    folder = journal.folder_of(project.root, profile)
    text = tree.file_text(folder / journal.FILE, journal.FILE)
    progress("going on with a trial that was broken off")
    lock = read_lock(folder / journal.LOCK)
    return session.with_(candidate=Candidate(text, lock, of=earlier.of))
