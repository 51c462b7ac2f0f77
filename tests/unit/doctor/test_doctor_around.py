"""Checks of host, image, container and surroundings; the documents they judge; the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import CONTAINER, DATA, ENGINE, IMAGE, Make, recording

from envgen.binding import ShapeError
from envgen.deployment import Deployment
from envgen.doctor import collect, probed, remedies, report
from envgen.doctor.around import Host
from envgen.doctor.checks import machine, outside
from envgen.doctor.checks.box import blocks
from envgen.doctor.collect import choose_container, gather
from envgen.doctor.model import Check, Context, Finding, Remedy, Severity, Subject, Where, error, ok
from envgen.doctor.probed import Trouble, from_json
from envgen.doctor.report import Report
from envgen.engine import box
from envgen.engine.values import Container, ContainerMount, EngineInfo, ExecResult, Image, Port
from envgen.errors import EngineError
from envgen.explain import classify
from envgen.inside import run
from envgen.inside.run import Execute
from envgen.profile.model import Profile
from envgen.serve.ended import Ended
from envgen.text import shell_line

GIB = 1 << 30


def severities(findings: list[Finding]) -> list[str]:
    return [finding.severity.word for finding in findings]


# --- host ------------------------------------------------------------------------------------------------------------


def test_a_production_build_needs_a_lock_first(make: Make) -> None:
    """`envgen build` of a project without a lock is refused, so the remedy begins with the lock."""
    for is_unlocked in (False, True):
        remedy = outside.exists(make(image=None, is_unlocked=is_unlocked))[0].remedy
        assert remedy is not None
        assert remedy.text.startswith("envgen lock --profile ") == is_unlocked
        assert remedy.text.endswith(f"envgen build -p {make().profile.name}")


def test_what_else_acts_when_memory_runs_low(make: Make) -> None:
    facts = box.Box(memory={"SwapTotal": 16 << 30}, killers={"earlyoom": 1 << 30})
    sets = ("gpu=required", "cuda.arch_list=12.1a")
    assert [one.title for one in blocks(make(box=facts, sets=sets))] == ["earlyoom runs", "swap is on: 16.0 GiB"]
    assert blocks(make(box=box.Box(), sets=sets)) == []
    assert blocks(make(box=facts, sets=("gpu=required", "cuda.arch_list=9.0a"))) == []  # memory of its own


def test_exposure(make: Make) -> None:
    (found,) = outside.exposure(make(profile="prod"))
    assert found.severity is Severity.WARNING and found.case == "open" and "no API key" in found.title
    assert found.remedy == Remedy("services: {serve: {ports: ['127.0.0.1:8000:8000']}}", is_line=True)
    (found,) = outside.exposure(make(profile="prod", sets=("secrets=[VLLM_API_KEY]",)))
    assert found.severity is Severity.OK and "reachable from the network" in found.title
    (found,) = outside.exposure(make(profile="prod", sets=("services.serve.ports=['127.0.0.1:8000:8000']",)))
    assert found.severity is Severity.OK and "this machine only" in found.title
    assert outside.exposure(make()) == []


# --- image and container ---------------------------------------------------------------------------------------------


def test_how_containers_ended(make: Make) -> None:
    died = replace(CONTAINER, state="exited", exit_code=1)
    end = Ended("dev", "lab-dev-1", "2026-11-25T23:44:40.7Z", False, 1, cause="a port is taken")
    (found,) = outside.running(make(container=died, ended={died.id: end}))
    assert found.title == "dev ended by itself at 2026-11-25T23:44:40Z, with exit code 1"
    assert (severities([found]), found.seen) == (["error"], "exit code 1: a port is taken")
    (found,) = outside.running(make(container=died))  # the engine did not say more
    assert (found.title, found.seen) == ("lab-dev-1 has exited", "exit code 1")
    (found,) = outside.running(make(container=died, ended={died.id: replace(end, exit_code=137, out_of_memory=True)}))
    assert found.title == "dev was killed at 2026-11-25T23:44:40Z, because memory ran out"
    (found,) = outside.running(make(container=died, ended={died.id: replace(end, asked=True)}))
    assert (severities([found]), found.evidence["case"]) == (["warning"], "stopped")
    (found,) = outside.running(make(container=replace(CONTAINER, state="paused")))
    assert (found.seen, found.remedy) == ("docker pause", Remedy("docker unpause lab-dev-1"))
    other = replace(died, id="2", name="lab-dev-2", server=True)
    failed = replace(end, exit_code=2, cause="an unknown flag")
    (found,) = outside.others(make(others=(other,), ended={"2": failed}))
    assert (severities([found]), found.seen) == (["error"], "exit code 2: an unknown flag")
    (found,) = outside.others(make(others=(other,), ended={"2": replace(failed, asked=True, exit_code=0)}))
    assert (severities([found]), found.title) == (["info"], "dev was stopped at 2026-11-25T23:44:40Z")
    (found,) = outside.others(make(others=(replace(other, state="paused"),)))
    assert found.remedy == Remedy("docker unpause lab-dev-2")


def test_what_a_healthy_server_admits(make: Make) -> None:
    line = "Unknown vLLM environment variable detected: VLLM_USE_V1"
    (found,) = outside.notices(make(notices={"lab-dev-1": classify([line])}))
    assert (severities([found]), found.evidence["case"], found.seen) == (["info"], "unknown_variable", line)
    assert found.title.startswith("lab-dev-1: a variable is set that this vLLM does not know")
    assert outside.notices(make()) == []


def test_what_docker_restarted(make: Make) -> None:
    end = Ended("dev", "lab-dev-1", "2026-11-25T23:44:40Z", False, runs=True, restarts=2, since="2026-11-25T23:45:00Z")
    (found,) = outside.restart_policy(make(container=replace(CONTAINER, restarts=2), ended={CONTAINER.id: end}))
    assert (severities([found]), found.evidence["case"]) == (["warning"], "restarted")
    assert found.title == "dev was restarted 2 times by Docker, last at 2026-11-25T23:45:00Z"
    (found,) = outside.restart_policy(make(container=replace(CONTAINER, restarts=5), ended={CONTAINER.id: end}))
    assert found.evidence["case"] == "looping"


def test_variables_never_show_secrets(make: Make) -> None:
    env = {"MAX": "1", "HF_TOKEN": "hf_secret", "VLLM_API_KEY": "k", "VLLM_X": "1", "PYTHONPATH": "/a"}
    theirs = replace(CONTAINER, env={"HF_TOKEN": "hf_other", "PYTHONPATH": "/a:/base", "MAX": "1"})
    (found,) = outside.variables(make(container=theirs, env=env))
    assert found.evidence["names"] == ["HF_TOKEN", "VLLM_API_KEY", "VLLM_X"]
    text = found.seen + found.expected
    assert "hf_" not in text
    assert "VLLM_API_KEY=(not shown)" in text
    assert "VLLM_X=1" in text
    (found,) = outside.variables(make(container=replace(CONTAINER, env={"LEVEL": "a"}), env={"LEVEL": "b"}))
    assert (found.seen, found.expected) == ("LEVEL=a", "LEVEL=b")
    assert found.title == "1 variable of the container differs from the profile"
    assert severities(outside.variables(make(container=replace(CONTAINER, env=env), env=env))) == ["ok"]


# --- inside ----------------------------------------------------------------------------------------------------------


def test_python_starts_cleanly(make: Make) -> None:
    assert severities(machine.probe_ran(make("hook"))) == ["ok"]
    (hook,) = machine.probe_ran(make("hangs"))
    assert hook.title == "an import hook hangs"
    assert hook.seen.startswith("sitecustomize.Hook hangs when asked for flashinfer (-c in /workspace)")
    assert hook.remedy is not None
    assert hook.remedy.text.endswith("mv /faults/hangs/sitecustomize.py /faults/hangs/sitecustomize.py.off")
    (noise,) = machine.probe_ran(replace(make("hook"), probe=from_json(recording("hook"), noise=7)))
    assert noise.severity is Severity.WARNING
    (trouble,) = machine.probe_ran(make(trouble=Trouble("the container has no python3", "not found")))
    assert trouble.severity is Severity.ERROR
    document = recording("hook")
    document["errors"] = [{"part": "system", "error": "OSError: x"}]
    assert severities(machine.probe_ran(make(document))) == ["warning"]


def with_folder(**facts: Any) -> dict[str, Any]:
    document = recording("hook")
    path = facts.pop("path", "/workspace/flashinfer")
    base = {"path": path, "exists": True, "mounted": True, "writable": True, "uid": 0, "gid": 0, "mode": "0o755"}
    document["folders"] = [{**base, **facts}]
    return document


@pytest.mark.parametrize(
    ("root", "inode", "checkout", "case"),
    [
        ("/src/flashinfer", 5, 5, ""),
        ("/@src", 5, 5, ""),  # a subvolume, or a link on the way
        ("/src/flashinfer", 6, 5, ""),  # an engine in a VM, whose file system has numbers of its own
        ("/src/before", 6, 5, "moved"),
        ("/src/before", 6, 0, "moved"),
        ("/src/flashinfer//deleted", 6, 5, "moved"),
        ("/src/before", 6, None, ""),  # a remote engine
    ],
)
def test_a_checkout_that_was_moved_while_it_was_mounted(
    make: Make, root: str, inode: int, checkout: int | None, case: str
) -> None:
    document = with_folder(root=root, inode=inode)
    place = "/home/me/src/flashinfer"
    container = replace(CONTAINER, mounts=(ContainerMount(place, "/workspace/flashinfer", "bind"),))
    inodes = {} if checkout is None else {"flashinfer": checkout}
    context = make(document, container=container, checkouts={"flashinfer": place}, inodes=inodes)
    (found,) = machine.source_mounts(context)
    assert found.case == case


@pytest.mark.parametrize(
    ("uid", "runs", "temporary", "host", "cure"),
    [
        (1000, True, False, "/mine", "docker exec --user 0 lab-dev-dev-1 chown -R 1000:1000 /root/.cache/flashinfer"),
        (1000, True, True, "/mine", "sudo chown -R 1000:1000 /mine"),
        (1000, False, False, "/mine", "sudo chown -R 1000:1000 /mine"),
        (1000, False, False, "", "envgen up -p dev dev"),
        (0, True, False, "/mine", "services: {dev: {user: host}}"),  # userns-remap
        (0, False, False, "/mine", "services: {dev: {user: host}}"),
    ],
)  # fmt: skip
def test_a_cache_that_can_not_be_written(
    make: Make, uid: int, runs: bool, temporary: bool, host: str, cure: str
) -> None:
    document = with_folder(path="/root/.cache/flashinfer", writable=False, uid=65534)
    document["system"] |= {"uid": uid, "gid": uid}
    container = replace(CONTAINER, name="lab-dev-dev-1") if runs else None
    sets = (f"caches.flashinfer.host={host}",) if host else ()
    context = replace(make(document, container=container, sets=sets), is_temporary=temporary)
    (found,) = machine.caches(context)
    assert found.remedy is not None and found.remedy.text == cure


# --- every check, every recording ------------------------------------------------------------------------------------


def every_context(make: Make) -> list[Context]:
    found = []
    for file in sorted(DATA.glob("*.json")):
        prod = file.stem.startswith("prod")
        found.append(make(file.stem, profile="prod" if prod else "dev", env={"A": "1"}, host=Host("/", 1)))
    return found


def test_every_finding_says_what_to_do(make: Make) -> None:
    for context in every_context(make):
        for finding in report.examine(context).findings:
            assert finding.check
            assert "failed" not in finding.title, finding
            if finding.severity >= Severity.WARNING:
                assert finding.seen
                assert finding.expected
                assert finding.remedy
            json.dumps(dict(finding.evidence))


def test_a_defect_in_a_check_is_a_finding(make: Make) -> None:
    def broken(_context: Context) -> list[Finding]:
        raise KeyError("x")

    found = report.examine(make(), checks=[Check("x.y", Where.HOST, broken)])
    assert found.findings[0].title == "the check x.y failed: a defect of envgen"
    assert found.worst is Severity.ERROR
    (finding,) = report.as_data(found)["findings"]
    assert "in broken" in finding["evidence"]["traceback"]


def test_a_remedy_is_one_line() -> None:
    assert Remedy("rm a\nb\x1b").text == "rm a\\nb\\x1b"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "it's\n\\", "\udcff", "a b", "\u202ex", "\ud800"])
def test_a_file_of_any_name_gets_a_command_in_one_line(name: str, make: Make) -> None:
    cure = remedies.away(make(), f"/app/{name}.py")
    assert cure.text.isprintable() and cure.text.endswith(shell_line([f"/app/{name}.py.off"]))


# --- the report ------------------------------------------------------------------------------------------------------


def test_text_and_data(make: Make) -> None:
    def judge(_context: Context) -> list[Finding]:
        return [ok("fine"), error("bad \x1b[31m", "this", "that", Remedy("do: it", is_line=True))]

    found = report.examine(make(), checks=[Check("x.y", Where.IMAGE, judge)])
    assert report.as_text(found) == (
        "Image\n  ok    fine\n  FAIL  bad \\x1b[31m\n        seen:     this\n        expected: that\n"
        "        fix:      do: it   (in envgen.yaml, profile dev)\n\n1 error, 1 ok"
    )
    assert "\x1b[31;1mFAIL\x1b[0m" in report.as_text(found, colour=True)
    data = report.as_data(found)
    assert data["worst"] == "error"
    assert data["counts"] == {"ok": 1, "info": 0, "warning": 0, "error": 1}
    assert data["findings"][1]["remedy"] == {"kind": "profile", "text": "do: it"}
    json.dumps(data)


# --- documents, requests, gathering ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"python": None}, {"python": {"version": 3}}, {"imports": {}}, {"imports": [{"package": "x"}]},
        {"imports": [3]}, {"system": {"uid": "0"}}, {"roots": [{"package": "x", "root": "/", "data": [{"name": 1}]}]},
    ],
)  # fmt: skip
def test_foreign_documents_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        from_json({**recording("hook"), **damage})


def answering(*printed: bytes, code: int = 0, stderr: bytes = b"") -> Execute:
    """A container whose Python prints this, ``MARK`` being the runner's."""

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        mark = json.loads(stdin)["mark"].encode()
        return ExecResult(code, b"".join(printed).replace(b"MARK", mark), stderr)

    return execute


def test_the_document_is_found_behind_noise() -> None:
    line = b"\nMARK " + json.dumps({"answer": recording("hook")}).encode() + b"\n"
    found, trouble = probed.ask(answering(b"\xff\xfe noise", line), "python3", {})
    assert trouble is None
    assert found is not None
    assert found.noise == 8


def refusing(_argv: Sequence[str], _stdin: bytes, _timeout: float) -> ExecResult:
    raise EngineError("timed out")


@pytest.mark.parametrize(
    ("execute", "title"),
    [
        (answering(code=127, stderr=b"exec: python3: not found"), "the probe could not be run"),
        (answering(code=137), "the probe returned no document"),
        (answering(b"hello"), "the probe returned no document"),
        (answering(b'\nMARK {"answer": {"python"'), "the probe returned no document"),
        (answering(b'\nMARK {"answer": {"python": 3}}'), "the probe's document can't be read"),
        (refusing, "the probe could not be run"),
    ],
)
def test_trouble_has_a_name(execute: Execute, title: str) -> None:
    probe, trouble = probed.ask(execute, "python3", {})
    assert probe is None
    assert trouble is not None
    assert trouble.title == title


def test_request(make: Make) -> None:
    asked = collect.request(make().profile, "dev")
    assert asked["folders"] == ["/workspace", "/workspace/flashinfer", "/", "~"]
    assert asked["packages"][0]["scripts"] == ["flashinfer"]
    assert asked["paths"] == ["/workspace/flashinfer", "/root/.cache/flashinfer"]
    assert run.shell_python(make(sets=("base.python=/opt/x/python3.12",)).profile) == "python3"


class FakeEngine:
    """The parts of an Engine that gathering uses."""

    def __init__(self, *containers: Container) -> None:
        self.found, self.asked = containers, list[list[str]]()

    def info(self) -> EngineInfo:
        return replace(ENGINE, endpoint="tcp://elsewhere")

    def image(self, name: str) -> Image | None:
        return IMAGE

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[Container, ...]:
        return self.found

    def volume(self, name: str) -> str | None:
        return None

    def inspect(self, name: str) -> dict[str, Any]:
        return {"Created": "2026-01-01T00:00:00.123456789Z"}

    def exec(self, container_id: str, argv: list[str], stdin: bytes = b"", **_given: Any) -> ExecResult:
        self.asked.append(argv)
        line = b"\nMARK " + json.dumps({"answer": recording("hook")}).encode() + b"\n"
        return answering(line)(argv, stdin, 0)

    run_once = exec


def deployment(profile: Profile, root: Path, engine: FakeEngine) -> Deployment:
    return Deployment(profile, root).with_cached(engine=engine)


def test_gather(make: Make, tmp_path: Path) -> None:
    engine = FakeEngine(replace(CONTAINER, ports=(Port(8000, 8000),)))
    context, extra = gather(Subject(deployment(make().profile, tmp_path, engine)))
    assert extra == []
    assert context.probe is not None
    assert context.host is not None
    assert context.env["CUDA_HOME"] == "/usr/local/cuda"
    assert context.digest
    # An import, the probe, and what runs.
    assert sorted(argv[1] for argv in engine.asked) == ["-X", "-c", "-c"]


def test_gather_without_a_container(make: Make, tmp_path: Path) -> None:
    subject = Subject(deployment(make().profile, tmp_path, FakeEngine()))
    assert gather(subject)[0].probe is None
    context, _ = gather(replace(subject, may_start=True))
    assert context.is_temporary
    assert context.probe is not None


def test_gather_without_an_engine(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_environ: object) -> Any:
        raise EngineError("Docker is stopped", command="sudo systemctl start docker")

    monkeypatch.setattr(box, "look", lambda: None)  # it starts nvidia-smi

    monkeypatch.setattr("envgen.deployment.connect", connect)
    context, (found,) = gather(Subject(Deployment(make().profile, tmp_path)))
    assert context.engine is None
    assert found.seen == "Docker is stopped"
    assert found.remedy == Remedy("sudo systemctl start docker")
    assert report.examine(context, [found]).worst is Severity.ERROR


def test_which_container() -> None:
    dev, serve = CONTAINER, replace(CONTAINER, service="serve", name="s")
    stopped = replace(serve, state="exited")
    assert choose_container([serve, dev], None) is dev
    assert choose_container([serve, dev], "serve") is serve
    assert choose_container([stopped], None) is stopped
    failed = replace(stopped, exit_code=75)
    assert choose_container([stopped, failed], None) is failed
    assert choose_container([replace(stopped, state="created")], None) is None
    assert choose_container([stopped], "serve") is stopped
    assert choose_container([], "serve") is None


def test_a_report_of_several_machines_names_them_and_ends_with_what_is_between_them(make: Make) -> None:
    one = report.with_more(Report(make(), (ok("a"),)), Where.NODES, [ok("the same")])
    two = Report(make(), (ok("b"),))
    several, alone = report.joined({"spark-1": one, "spark-2": two}), report.joined({"": two})
    rows = [(row["node"], row["title"]) for row in report.as_data(several)["findings"]]
    assert rows == [("spark-1", "a"), ("spark-2", "b"), (None, "the same")]
    headings = [line for line in report.as_text(several).splitlines() if line and not line.startswith(" ")]
    assert headings[:3] == ["Host on spark-1", "Host on spark-2", "The machines of the cluster"]
    assert report.as_text(alone).startswith("Host\n")
