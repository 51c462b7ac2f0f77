"""What a service gets of the machine is printed once, and again when it changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import grants
from envgen.deployment import Deployment
from envgen.engine.compose import Compose
from envgen.profile.load import load_project, select

FILE = """\
version: 1
name: p
profiles:
  dev:
    mode: development
    base: {image: "a/b:1"}
    cuda: {arch_list: 12.1a}
    ipc: host
    caches: {hf: {path: /hf, host: ~/.cache/huggingface}, own: {path: /own}}
    sources: {lib: {origin: {checkout: ../lib}, package: lib, distribution: lib, mount: /workspace/lib}}
    services:
      web: {command: [x], mounts: {m: "./m:/m:ro"}, devices: [/dev/x], cap_add: [IPC_LOCK], network: host}
"""
BARE = """\
version: 1
name: p
profiles:
  dev:
    mode: production
    base: {image: "a/b:1"}
    gpu: none
    compose: over.yaml
    services: {web: {command: [x]}}
"""


def at(file: Path) -> Deployment:
    return Deployment(select(load_project(file).project, "dev"), file.parent)


def test_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(FILE)
    note = grants.note(at(file), "web")
    assert note == (
        "web has access to ../lib (read-write), ./m (read-only), ~/.cache/huggingface (read-write), /dev/x, "
        "IPC_LOCK, the host's network, the host's IPC"
    )
    assert grants.note(at(file), "web") == ""
    file.write_text(FILE.replace(":ro", ""))
    changed = grants.note(at(file), "web")
    assert changed.endswith("; new since its last start: ./m (read-write)")
    file.write_text(FILE)
    (tmp_path / ".envgen/granted.json").write_text("[]")  # whatever it holds
    assert grants.note(at(file), "web") == note
    file.write_text(FILE.partition("    ipc")[0] + "    services: {web: {command: [x]}}\n")
    assert grants.note(at(file), "web") == ""


# What `docker compose config --no-interpolate --format json` of Compose 2.40 prints.
WEB: dict[str, Any] = {
    "image": "a/b:1", "command": ["x"], "environment": {"MAX_JOBS": "${ENVGEN_JOBS:-128}", "HF_TOKEN": None},
    "volumes": [{"type": "bind", "source": "${ENVGEN_CA:-/dev/null}", "target": "/ca", "read_only": True}],
}  # fmt: skip


class Recorded(Compose):
    """The document of the rendered file alone, and with the profile's own file."""

    documents: Mapping[bool, Any] = {}

    def config(self, *, interpolate: bool = True) -> Mapping[str, Any]:
        assert not interpolate, "no value of a variable is read"
        document: Mapping[str, Any] = json.loads(json.dumps(self.documents[len(self.files) > 1]))
        return document


def note(root: Path, added: Mapping[str, Any], text: str = "services: {}\n", **top: Any) -> str:
    (root / "envgen.yaml").write_text(BARE)
    (root / "over.yaml").write_text(text)
    deployment = at(root / "envgen.yaml")
    services = {"web": {**WEB, **added}, **top.pop("others", {})}
    Recorded.documents = {False: {"services": {"web": WEB}}, True: {"services": services, **top}}
    files = (root / "compose/dev.yaml", root / "over.yaml")
    compose = Recorded(SimpleNamespace(), files, root / "compose")  # type: ignore[arg-type]
    return grants.note(deployment.knowing(compose=compose), "web")


def volume(source: str, kind: str = "bind", **more: Any) -> dict[str, Any]:
    return {"volumes": [*WEB["volumes"], {"type": kind, "source": source, "target": "/x", **more}]}


def environment(**more: str | None) -> dict[str, Any]:
    return {"environment": {**WEB["environment"], **more}}


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"privileged": True}, "all devices and rights of the host (privileged)"),
        ({"privileged": "${P:-true}"}, "privileged: ${P:-true}, $P of your shell"),
        ({"use_api_socket": True}, "the Docker Engine (use_api_socket)"),
        ({"network_mode": "host"}, "the host's network"),
        ({"network_mode": "container:other"}, "network_mode: container:other"),
        ({"pid": "host"}, "the host's processes"),
        ({"ipc": "host"}, "the host's IPC"),
        ({"cap_add": ["SYS_ADMIN"]}, "SYS_ADMIN"),
        ({"devices": [{"source": "/dev/sda", "target": "/dev/sda", "permissions": "rwm"}]}, "/dev/sda"),
        ({"device_cgroup_rules": ["c 1:3 mr"]}, "device_cgroup_rules: c 1:3 mr"),
        ({"security_opt": ["seccomp=unconfined"]}, "security_opt: seccomp=unconfined"),
        ({"some_key_of_a_later_compose": {"a": 1}}, 'some_key_of_a_later_compose: {"a": 1}'),
        (volume("/"), "/ (read-write)"),
        (volume("/etc", read_only=True), "/etc (read-only)"),
        (environment(STOLEN="${AWS_SECRET_ACCESS_KEY:-}"), "$AWS_SECRET_ACCESS_KEY of your shell"),
        (environment(AWS_SECRET_ACCESS_KEY=None), "$AWS_SECRET_ACCESS_KEY of your shell"),
        ({"command": ["x", "$NAME", "$$HOME"]}, "$NAME of your shell"),
        ({"ports": [{"target": 8000, "published": "80"}]}, "port 80"),
    ],
)
def test_what_its_own_compose_file_adds(tmp_path: Path, added: dict[str, Any], words: str) -> None:
    assert note(tmp_path, {}) == "over.yaml changes nothing of web"
    assert note(tmp_path, {}) == ""
    text = note(tmp_path, added)
    sets = "".join(f"; over.yaml sets its {key}" for key in ("command", "environment") if key in added)
    assert text == f"web has access to {words}; new since its last start: {words}{sets}"
    assert note(tmp_path, added) == ""
    assert "changes nothing" in note(tmp_path, {})


def test_what_a_volume_and_a_secret_lead_to(tmp_path: Path) -> None:
    top: dict[str, Any] = {"volumes": {"v": {"driver_opts": {"type": "none", "o": "bind", "device": "/etc"}}}}
    assert note(tmp_path, volume("v", "volume"), **top).startswith("web has access to /etc (a volume)")
    top = {"secrets": {"key": {"environment": "AWS_SECRET_ACCESS_KEY"}}}
    added = {"secrets": [{"source": "key", "target": "/run/secrets/key"}]}
    assert note(tmp_path, added, **top).startswith("web has access to $AWS_SECRET_ACCESS_KEY of your shell")


def test_a_service_that_compose_starts_with_it(tmp_path: Path) -> None:
    other = {"image": "c:d", "pid": "host", "depends_on": {"third": {}}}
    others = {"side": other, "third": {"privileged": True}, "unrelated": {"privileged": True}}
    text = note(tmp_path, {"depends_on": {"side": {"condition": "service_started"}}}, others=others)
    assert text == (
        "web has access to side: the host's processes, third: all devices and rights of the host (privileged); "
        "over.yaml sets its depends_on, side: image, side: depends_on"
    )


def test_files_that_it_names_count_too(tmp_path: Path) -> None:
    (tmp_path / "more.env").write_text("# ${NOT_THIS}\nA=1\n")
    text = "services: {web: {env_file: [../more.env]}}\n"
    added = environment(A="1")
    assert note(tmp_path, added, text) == "over.yaml sets its environment"
    assert note(tmp_path, added, text) == ""
    (tmp_path / "more.env").write_text("A=${AWS_SECRET_ACCESS_KEY}\n")
    assert "$AWS_SECRET_ACCESS_KEY of your shell" in note(tmp_path, added, text)
