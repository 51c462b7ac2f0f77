"""The running programs, judged: what doctor says of the facts that `inside/probe/running.py` collects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import CONTAINER, Make

from envgen.binding import bind
from envgen.doctor.checks.running import import_running
from envgen.doctor.model import Context, Finding, Severity
from envgen.doctor.programs import Running
from envgen.engine.values import ContainerMount

PP = "/workspace/flashinfer"
HOME = f"{PP}/flashinfer/__init__.py"
SITE = "/usr/local/lib/python3.12/dist-packages"


def cell(origin: str, entry: str | None, package: str = "flashinfer", **more: Any) -> dict[str, Any]:
    return {"package": package, "how": "x", "folder": "/", "kind": "regular", "origin": origin, "entry": entry,
            "finder": "PathFinder", **more}  # fmt: skip


def process(**given: Any) -> dict[str, Any]:
    return {"pid": 7, "started": 1000.0, "title": "python3 /app/srv.py", "folder": "/", "how": "script", "target":
            "/app/srv.py", "executable": "/usr/bin/python3.12", "cells": [cell(HOME, PP)], **given}  # fmt: skip


def context(make: Make, *processes: dict[str, Any], facts: dict[str, Any] | None = None, **given: Any) -> Context:
    container = replace(CONTAINER, env={"PYTHONPATH": PP}, mounts=(
        ContainerMount("/home/me/flashinfer", PP), ContainerMount("/home/me/app", "/app", read_only=True)))  # fmt: skip
    container = replace(container, service=given.pop("service", "dev"))
    origins = [{"package": "flashinfer", "home": HOME}]
    data = {"service": container.service, "processes": list(processes), "origins": origins, **(facts or {})}
    running = replace(bind(Running, data), container=container)
    return make(running=(running,), python_path=PP, **given)


def judged(make: Make, *processes: dict[str, Any], **given: Any) -> list[Finding]:
    return import_running(context(make, *processes, **given))


def only(make: Make, *processes: dict[str, Any], **given: Any) -> tuple[str, str]:
    """What was seen, and the fix."""
    (found,) = judged(make, *processes, **given)
    assert found.case == "other" and found.severity is Severity.ERROR and found.expected == HOME
    assert found.remedy is not None
    return found.seen, found.remedy.text


def test_a_program_that_has_what_a_new_one_has(make: Make) -> None:
    (found,) = judged(make, process(), process(pid=8, cells=[]))
    assert found.title == "dev: 1 running Python program has what a new one would import (flashinfer)"
    assert judged(make) == []
    # A system tool's Python has no such package.
    (found,) = judged(make, process(cells=[cell("", None, kind="missing")]))
    assert found.severity is Severity.OK


def test_a_namespace_counts_where_the_program_imports_it(make: Make) -> None:
    """Any folder below the current one can be a namespace."""
    trap = cell("", "", kind="namespace", portions=[PP], entries=[""])
    (fine,) = judged(make, process(cells=[trap]))
    assert fine.severity is Severity.OK
    seen, cure = only(make, process(cells=[trap], named=["flashinfer"], how="-c"))
    assert seen.startswith(f"{PP}, in process 7") and cure == f"python_path: [{PP}]"


@pytest.mark.parametrize("service", ["dev", "gone"])  # also one that the profile no longer has
def test_a_folder_beside_the_script(make: Make, service: str) -> None:
    evil = process(cells=[cell("/app/flashinfer/__init__.py", "/app")])
    seen, cure = only(make, evil, process(**{**evil, "pid": 8}), service=service)
    assert seen == ("/app/flashinfer/__init__.py, in process 7 (python3 /app/srv.py), process 8 (python3 /app/srv.py); "
                    "the script's own folder /app")  # fmt: skip
    assert cure == (
        "mv /home/me/app/flashinfer /home/me/app/flashinfer.off && envgen restart -p dev " + service
    )  # the mount is read-only


def test_what_the_program_does_to_sys_path(make: Make) -> None:
    change = {"what": "first", "entry": "/evil", "file": "/app/srv.py", "line": 3}
    seen, cure = only(make, process(cells=[cell("/evil/flashinfer.py", "/evil", kind="module")], changes=[change]))
    assert "/app/srv.py, line 3 puts /evil on sys.path" in seen
    assert cure.startswith("envgen exec -p dev dev mv /evil/flashinfer.py /evil/flashinfer.py.off && envgen restart")
    (found, fine) = judged(make, process(changes=[{**change, "what": "unknown", "entry": ""}]))
    assert found.severity is Severity.INFO and found.seen == "/app/srv.py, line 3"
    assert fine.severity is Severity.OK


PYTHON_PATHS: list[tuple[list[str], dict[str, Any], str]] = [  # of the service, of the process, and the fix
    *(([f"services.dev.command={command}"], {}, f"services: {{dev: {{command: {better}}}}}") for command, better in (
        ('[sh, -c, "PYTHONPATH=/evil exec python3 x.py"]', '["sh", "-c", "exec python3 x.py"]'),
        ("[sh, -c, \"export PYTHONPATH='/evil b'; python3 x.py\"]", '["sh", "-c", "python3 x.py"]'),
        ('[/usr/bin/env, "PYTHONPATH=/evil", python3, x.py]', '["/usr/bin/env", "python3", "x.py"]'),
        ("[/app/other/python3, x.py]", '["python3", "x.py"]'))),
    (["services.dev.env={BASH_ENV: /x, A: b}"], {}, "services: {dev: {env: {A: 'b'}}}"),
    ([], {}, "envgen exec -p dev dev mv /evil/flashinfer /evil/flashinfer.off && envgen restart -p dev dev"),
    ([], {"top": 7}, "envgen exec -p dev dev kill 7"),  # of `exec`: the service's command has nothing to do with it
]  # fmt: skip


@pytest.mark.parametrize(("sets", "facts", "better"), PYTHON_PATHS)
def test_another_pythonpath(make: Make, sets: list[str], facts: dict[str, Any], better: str) -> None:
    """BASH_ENV only of the service itself: the base image has one."""
    variables = {"PYTHONPATH": "/evil", "BASH_ENV": "/etc/bash.bashrc"}
    evil = process(cells=[cell("/evil/flashinfer/__init__.py", "/evil")], variables=variables, **facts)
    seen, cure = only(make, evil, sets=sets)
    assert "its PYTHONPATH is /evil, not the container's" in seen and cure == better


@pytest.mark.parametrize(
    ("entry", "facts", "more", "words"),
    [
        ("/app", {}, {}, "the script's own folder /app"),
        ("/app", {"how": "-m", "folder": "/x"}, {}, "the entry /app of sys.path"),
        ("/x", {"how": "-m", "folder": "/x"}, {}, "its folder /x, which `-m` puts first on sys.path"),
        ("/x", {"how": "-c", "folder": "/x"}, {}, "the entry /x of sys.path"),
        ("", {"how": "-c", "folder": "/x"}, {}, "its folder /x, which `-c` puts first on sys.path"),
        (None, {}, {"finder": "Editable"}, "the import hook Editable"),
        (None, {}, {}, "no entry of sys.path"),
        (
            "/x",
            {"changes": [{"what": "first", "entry": "/y", "file": "/a", "line": 1}]},
            {},
            "the entry /x of sys.path",
        ),
        ("/x", {"changes": [{"what": "first", "entry": "/x", "file": "/a", "line": 1}]}, {}, "/a, line 1 puts /x on"),
    ],
)
def test_what_decided(make: Make, entry: str | None, facts: dict[str, Any], more: dict[str, Any], words: str) -> None:
    evil = cell("/evil/flashinfer/__init__.py", entry, **more)
    assert f"; {words}" in only(make, process(cells=[evil], **facts))[0]


@pytest.mark.parametrize(("number", "words"), [(3, "process 3 (x); "), (4, "process 3 (x) and 1 more; ")])
def test_some_programs_are_named(make: Make, number: int, words: str) -> None:
    evil = [cell("/evil/flashinfer/__init__.py", "/evil")]
    several = [process(pid=pid + 1, title="x", cells=evil) for pid in range(number)]
    assert words in only(make, *several)[0]


def test_workers_that_hide_their_start(make: Make) -> None:
    """vLLM's set their title; what they have loaded is seen all the same."""
    file = f"{SITE}/vllm/__init__.py"
    owners = [
        {"package": "vllm", "recorded": [{"name": "vllm", "file": file}]},
        {
            "package": "flashinfer",
            "recorded": [{"name": "flashinfer-python", "file": f"{SITE}/flashinfer/__init__.py"}],
        },
    ]
    server = process(cells=[cell(file, SITE, "vllm")], origins=owners, named=["vllm"])
    library = {"package": "vllm", "folder": f"{SITE}/vllm", "file": f"{SITE}/vllm/_C.abi3.so"}
    worker = process(pid=9, title="VLLM::EngineCore", how="", cells=[], mapped=[library])
    (found,) = judged(make, server, worker, profile="prod", service="serve")
    assert found.title.startswith("serve: 2 running Python programs have")
    other = {**library, "folder": "/opt/old/vllm", "file": "/opt/old/vllm/_C.abi3.so"}
    (found,) = judged(make, server, {**worker, "mapped": [other]}, profile="prod", service="serve")
    assert found.case == "other" and "it has /opt/old/vllm/_C.abi3.so loaded" in found.seen
    assert found.remedy is not None and found.remedy.text == "envgen restart -p prod serve"
    (found,) = judged(
        make, server, {**worker, "mapped": [{**library, "changed": 1001.0}]}, profile="prod", service="serve"
    )
    assert found.case == "older" and f"{SITE}/vllm/_C.abi3.so loaded, which was written to since" in found.seen
    gone = {**library, "gone": True}
    (found,) = judged(make, server, {**worker, "mapped": [gone]}, profile="prod", service="serve")
    assert found.case == "older" and "which was replaced since" in found.seen


def test_older_than_an_edit(make: Make) -> None:
    """Only of a program that is seen to use the package: by an import in its code, or a library."""
    age = {"package": "flashinfer", "folder": f"{PP}/flashinfer", "file": f"{PP}/flashinfer/page.py", "changed": 1034.2}
    user = process(named=["flashinfer"])
    (found,) = judged(make, user, facts={"ages": [age]})
    assert (found.case, found.severity) == ("older", Severity.WARNING)
    assert found.seen == f"{PP}/flashinfer/page.py was changed 34 s after process 7 (python3 /app/srv.py) started"
    assert found.remedy is not None and found.remedy.text == "envgen restart -p dev dev"
    (found,) = judged(make, user, facts={"ages": [{**age, "gone": True}]})
    assert found.seen == f"{PP}/flashinfer/page.py was deleted 34 s after process 7 (python3 /app/srv.py) started"
    assert judged(make, process(), facts={"ages": [age]})[0].severity is Severity.OK
    assert judged(make, user, facts={"ages": [{**age, "changed": 999.0}]})[0].severity is Severity.OK


def test_what_could_not_be_looked_at_is_said(make: Make) -> None:
    late, hidden = judged(make, process(cells=[], error="took longer than 4 s"), facts={"hidden": 2})
    assert late.severity is Severity.INFO and "took longer than 4 s" in late.seen
    assert hidden.severity is Severity.INFO and "2 programs of another user" in hidden.title
    (found,) = judged(make, facts={"trouble": "no answer in time"})
    assert found.severity is Severity.INFO
