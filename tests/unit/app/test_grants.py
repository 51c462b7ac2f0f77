"""What a service gets of the machine is printed once, and again when it changes."""

from __future__ import annotations

from pathlib import Path

from envgen.app import grants
from envgen.deployment import Deployment
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
    assert changed == note.replace("./m (read-only)", "./m (read-write)")
    file.write_text(FILE)
    (tmp_path / ".envgen/granted.json").write_text("[]")  # whatever it holds
    assert grants.note(at(file), "web") == note
    file.write_text(FILE.partition("    ipc")[0] + "    services: {web: {command: [x]}}\n")
    assert grants.note(at(file), "web") == ""


def test_an_own_compose_file_is_named_and_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(BARE)
    (tmp_path / "over.yaml").write_text("services: {}\n")
    deployment = at(tmp_path / "envgen.yaml")
    assert grants.note(deployment, "web") == "web has access to whatever over.yaml gives it"
    assert grants.note(deployment, "web") == ""
    (tmp_path / "over.yaml").write_text("services: {web: {privileged: true}}\n")
    assert grants.note(deployment, "web") == "web has access to whatever over.yaml gives it"
