"""Random answers of an engine: read, or one EngineError. ENVGEN_EXAMPLES says how many; the full fuzz is 10,000."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutated import CHANGES, Changes, mutated

from envgen.engine.client import Engine
from envgen.engine.endpoint import Endpoint
from envgen.errors import EngineError

EXAMPLES = settings(
    max_examples=int(os.environ.get("ENVGEN_EXAMPLES", "10")),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
LABELS = {"com.docker.compose.project": "p", "com.docker.compose.service": "web", "dev.envgen.throwaway": "1"}
CONTAINER = {
    "Id": "a" * 64, "Name": "/web", "Image": "sha256:1", "RestartCount": 1,
    "State": {"Status": "running", "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-01-01T00:00:00Z", "Error": "",
              "Health": {"Status": "healthy"}},
    "Config": {"Labels": LABELS, "Env": ["A=1", "B"]},
    "HostConfig": {"RestartPolicy": {"Name": "always"}},
    "Mounts": [{"Type": "volume", "Name": "v", "Source": "/x", "Destination": "/c", "RW": True}],
    "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8000"}]}},
}  # fmt: skip
ROW = {"Id": "a" * 64, "Names": ["/web"], "Image": "i", "State": "exited", "Created": 1_700_000_000, "Labels": LABELS}
IMAGE = {"Id": "sha256:1", "Created": "2026-01-01T00:00:00Z", "Size": 5, "Architecture": "amd64", "RepoTags": ["i:1"],
         "RepoDigests": ["i@sha256:1"], "Config": {"Labels": {"a": "b"}, "Env": ["A=1"]}}  # fmt: skip
INFO = {"ServerVersion": "28.5.2", "Architecture": "x86_64", "Runtimes": {"runc": {}}, "DockerRootDir": "/var",
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}], "MemTotal": 1, "NCPU": 2,
        "Name": "n"}  # fmt: skip
VOLUME = {"Name": "v", "Mountpoint": "/m", "UsageData": {"Size": 7}}
# What is asked -> the documents that answer it, in their order; the last one goes on.
QUESTIONS: dict[str, tuple[Callable[[Engine], Any], list[Any]]] = {
    "info": (lambda engine: engine.info(), [INFO]),
    "image": (lambda engine: engine.image("i"), [IMAGE]),
    "container": (lambda engine: engine.container("c"), [CONTAINER]),
    "containers": (lambda engine: engine.containers(all=True), [[ROW, ROW], CONTAINER]),
    "leftovers": (lambda engine: engine.leftovers(), [[ROW, ROW]]),
    "images": (lambda engine: engine.images("l"), [[ROW], IMAGE]),
    "processes": (lambda engine: engine.processes("c"), [{"Processes": [["5", "1", "Ss", "5", "x"]]}]),
    "volume": (lambda engine: engine.volume("v"), [VOLUME]),
    "volumes": (lambda engine: engine.volumes("v"), [{"Volumes": [VOLUME]}]),
    "volumes of a project": (lambda engine: engine.volumes(project="v"), [{"Volumes": [VOLUME]}]),
}


@pytest.fixture(scope="module")
def answers() -> Any:
    """The bodies that come, whatever is asked."""
    found: list[bytes] = []

    def send(*_: object, **__: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.url = 200, "http+docker://localhost/x"
        answer.raw = io.BytesIO(found[0] if len(found) == 1 else found.pop(0))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("docker.APIClient.send", send)
        yield found


def check(found: Any) -> None:
    """What the rest of envgen takes for granted."""
    for mapping in (getattr(found, "labels", {}), getattr(found, "env", {})):
        assert all(isinstance(text, str) for pair in mapping.items() for text in pair)
    for texts in (getattr(found, "repo_tags", ()), getattr(found, "repo_digests", ())):
        assert all(isinstance(text, str) for text in texts)
    if isinstance(getattr(found, "created", None), float):
        assert math.isfinite(found.created)


@EXAMPLES
@given(
    name=st.sampled_from(sorted(QUESTIONS)),
    changes=CHANGES,
    which=st.integers(0, 1),
    odd=st.sampled_from(["", "", "", "1e999", "NaN", "9" * 400, "9" * 5000, "[" * 100_000, '{"a":' * 990]),
)
@example(name="containers", changes=[(1, "\u202e\ud800", "put")], which=0, odd="")
@example(name="leftovers", changes=[(0, 1, "put")], which=0, odd="9" * 400)
@example(name="leftovers", changes=[(0, None, "remove")], which=0, odd="NaN")
@example(name="info", changes=[(0, 1, "put")], which=0, odd="[" * 100_000)
def test_answers(answers: list[bytes], name: str, changes: Changes, which: int, odd: str) -> None:
    ask, documents = QUESTIONS[name]
    texts = [json.dumps(one) for one in documents]
    at = which % len(texts)
    texts[at] = json.dumps(mutated(documents[at], changes))
    if odd:
        texts[at] = texts[at].replace("1700000000", odd).replace("5", odd).replace('"8000"', odd)
    answers[:] = [text.encode() for text in texts]
    try:
        found = ask(Engine(Endpoint("unix:///none.sock", "the default"), {"api-version": "1.43"}))
    except EngineError as error:
        assert str(error)
    else:
        for one in found if isinstance(found, tuple) else [found]:
            check(one)
