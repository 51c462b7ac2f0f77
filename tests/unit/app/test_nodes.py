"""The machines of a service: what doctor makes of the check, and what belongs to one machine alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import doctor
from envgen.deployment import Deployment
from envgen.doctor.model import Remedy, Severity, Subject
from envgen.doctor.nodes import completed, finding
from envgen.profile.service import Cluster, Service

SERVICE = Service(command=("vllm", "serve", "/models/m"))


def test_doctor_reports_the_machines_of_a_cluster_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    services = {"serve": replace(SERVICE, cluster=Cluster(nodes=("one", "two"))), "dev": SERVICE}
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod", services=services)
    answers = [
        finding(Severity.OK, ("one",), "Docker 29"),
        finding(Severity.WARNING, ("one", "two"), "slow", "is it the right interface?"),
        finding(Severity.ERROR, ("two",), "the image x is not there", fix="docker save x | docker --context two load"),
    ]
    monkeypatch.setattr(
        "envgen.app.cluster.nodes.check", lambda *_: [completed(one, profile, "serve") for one in answers]
    )
    ok, warning, error = doctor._machines(Subject(Deployment(profile, Path())))
    assert ok.title == "one: Docker 29" and ok.severity is Severity.OK
    assert warning.severity is Severity.WARNING and (warning.title, warning.seen) == ("one+two: slow", "service serve")
    assert warning.remedy == Remedy("envgen nodes check serve --profile prod")
    assert error.severity is Severity.ERROR and error.title == "two: the image x is not there"
    assert error.remedy == Remedy("docker save x | docker --context two load")
    assert doctor._machines(Subject(Deployment(profile, Path()), "dev")) == []
