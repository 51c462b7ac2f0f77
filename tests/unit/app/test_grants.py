"""What a service gets of the machine is said once, and again when it changes."""

from __future__ import annotations

from pathlib import Path

from envgen.app import grants
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


def test_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "envgen.yaml"
    file.write_text(FILE)
    profile = select(load_project(file).project, "dev")
    note = grants.note(profile, tmp_path, "web")
    assert note == (
        "web has access to ../lib (read-write), ./m (read-only), ~/.cache/huggingface (read-write), /dev/x, "
        "IPC_LOCK, the host's network, the host's IPC"
    )
    assert grants.note(profile, tmp_path, "web") == ""
    file.write_text(FILE.replace(":ro", ""))
    assert "./m (read-write)" in grants.note(select(load_project(file).project, "dev"), tmp_path, "web")
    (tmp_path / ".envgen/granted.json").write_text("[]")  # whatever it holds
    assert grants.note(profile, tmp_path, "web") == note
    file.write_text(FILE.partition("    ipc")[0] + "    services: {web: {command: [x]}}\n")
    assert grants.note(select(load_project(file).project, "dev"), tmp_path, "web") == ""
