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
    return {"pid": 7, "started": 1000.0, "title": "python3 /app/srv.py", "python_path": PP, "cells": [cell(HOME, PP)],
            **given}  # fmt: skip


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
    seen, cure = only(make, process(cells=[trap], named=["flashinfer"]))
    assert seen.startswith(f"{PP}, in process 7") and cure == f"python_path: [{PP}]"


@pytest.mark.parametrize("service", ["dev", "gone"])  # also one that the profile no longer has
def test_a_folder_beside_the_script(make: Make, service: str) -> None:
    evil = process(cells=[cell("/app/flashinfer/__init__.py", "/app")])
    seen, cure = only(make, evil, process(**{**evil, "pid": 8}), service=service)
    assert seen == ("/app/flashinfer/__init__.py, in process 7 (python3 /app/srv.py), process 8 (python3 /app/srv.py); "
                    "the entry /app of sys.path")  # fmt: skip
    assert cure == (
        "mv /home/me/app/flashinfer /home/me/app/flashinfer.off && envgen restart -p dev " + service
    )  # the mount is read-only


@pytest.mark.parametrize(
    ("entry", "more", "words"),
    [
        ("/x", {}, "the entry /x of sys.path"),
        ("", {}, "the entry of its own folder of sys.path"),
        ("/evil", {}, "its PYTHONPATH is /evil, not the container's"),
        (None, {"finder": "Editable"}, "the import hook Editable"),
        (None, {}, "no entry of sys.path"),
    ],
)
def test_what_decided(make: Make, entry: str | None, more: dict[str, Any], words: str) -> None:
    evil = cell("/evil/flashinfer/__init__.py", entry, **more)
    assert f"; {words}" in only(make, process(cells=[evil], python_path="/evil"))[0]


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
    worker = process(pid=9, title="VLLM::EngineCore", cells=[], mapped=[library])
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
    assert judged(make, process(), facts={"ages": [age]})[0].severity is Severity.OK
    assert judged(make, user, facts={"ages": [{**age, "changed": 999.0}]})[0].severity is Severity.OK


def test_what_could_not_be_looked_at_is_said(make: Make) -> None:
    (late,) = judged(make, process(cells=[], error="took longer than 4 s"))
    assert late.severity is Severity.INFO and "took longer than 4 s" in late.seen
    (found,) = judged(make, facts={"trouble": "no answer in time"})
    assert found.severity is Severity.INFO
