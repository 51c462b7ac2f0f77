"""Whole files: digests, comparing, and writing without surprises."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests_render_make import mounted, profile, source

from envgen import files
from envgen.errors import ProjectError, RefusedError
from envgen.profile.model import Cache, DockerfileExtra, GpuMode, Mode, Network, Profile, Project
from envgen.profile.service import Service
from envgen.profile.values import ContainerPath, DockerLine, HostPath
from envgen.render import outputs
from envgen.render.outputs import (
    diff,
    docker_files,
    lay_out,
    render_profile,
    render_project,
    scripts,
    write,
)


def changed(found: Profile, **changes: Any) -> Profile:
    return dataclasses.replace(found, **changes)


def project(root: Path, *profiles: Profile) -> Project:
    return Project("demo", profiles[0].name, {p.name: p for p in profiles}, root / "envgen.yaml", root)


def test_a_value_that_cannot_be_carried_is_an_error_of_the_project() -> None:
    with pytest.raises(ProjectError, match="line break"):
        render_profile(profile(working_dir=ContainerPath("/a\nb")))


def test_an_absolute_path_becomes_a_required_variable() -> None:
    found = profile(
        mode=Mode.DEVELOPMENT,
        dockerfile="Dockerfile.dev",
        sources={"vllm": mounted(path="/somewhere/vllm")},
        caches={"torch": Cache(ContainerPath("/torch"), HostPath("/somewhere/torch"))},
        network=Network(ca_certificates=HostPath("/somewhere/ca.pem")),
    )
    for path, content in render_profile(found).files.items():
        assert b"/somewhere" not in content, path
    text = render_profile(found).files["compose/prod.yaml"].decode()
    assert "${ENVGEN_SOURCES__VLLM__ORIGIN__CHECKOUT:?the folder of your vllm checkout}" in text
    assert "${ENVGEN_CACHES__TORCH__HOST:?a folder for the cache torch}" in text


def test_gpu_modes() -> None:
    def files(mode: GpuMode) -> dict[str, bytes]:
        return {k: v for k, v in render_profile(profile(gpu=mode)).files.items() if k.startswith("compose/")}

    for mode in GpuMode:  # one file: plain `docker compose up` needs no other
        assert set(files(mode)) == {"compose/prod.yaml"}
    assert files(GpuMode.REQUIRED) == files(GpuMode.AUTO) == files(GpuMode.ALL)
    assert b"{driver: nvidia, count: all, capabilities: [gpu]}" in files(GpuMode.ALL)["compose/prod.yaml"]
    assert b"nvidia.com/gpu=all" in files(GpuMode.CDI)["compose/prod.yaml"]
    assert b"devices:" not in files(GpuMode.NONE)["compose/prod.yaml"]


def test_a_services_own_variables_are_the_strongest() -> None:
    found = profile(
        env={"X": "a", "Y": "a"},
        services={
            "one": Service(command=("x",), env={"Y": "own"}),
        },
    )
    document = yaml.safe_load(render_profile(found).files["compose/prod.yaml"])
    seen = {name: service["environment"] for name, service in document["services"].items()}
    assert (seen["one"]["X"], seen["one"]["Y"]) == ("a", "own")
    assert "MAX_JOBS" in seen["one"]


def test_the_ignore_file_lets_in_what_any_profile_needs(tmp_path: Path) -> None:
    one = profile(dockerfile_extra=DockerfileExtra(end=(DockerLine.parse("COPY files/o /"),)))
    other = profile(name="other", dockerfile="Dockerfile.other")
    files = render_project(project(tmp_path, one, other))
    assert files[".dockerignore"].decode().splitlines()[1:] == ["*", "!docker/", "!patches/", "!files/o"]
    only = render_project(project(tmp_path, one, other), only="other")
    # With the programs that its Dockerfile mounts, and no others.
    programs = {path for path in only if path.startswith("docker/")}
    assert set(only) == {"Dockerfile.other", ".dockerignore", "compose/other.yaml"} | programs
    assert programs < set(scripts())


def test_the_digest_covers_the_programs_that_the_steps_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile(sources={"vllm": source()})
    before = render_profile(found).digest
    for path, same in (("docker/build/build-wheel", False), ("docker/build/apply-patches", True)):
        monkeypatch.setattr(outputs, "docker_files", lambda plan, path=path: {**docker_files(plan), path: "#!other"})
        assert (outputs.render_profile(found).digest == before) is same, path


# --- diff and write ---------------------------------------------------------------------------------------------------


def test_diff_is_unified_from_disk_to_render(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"one\ntwo"})
    assert diff(tmp_path, {"a": b"one\nthree\n", "new": b"x\n"}) == (
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline at end of file\n+three\n"
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    )


def test_unchanged_files_are_not_touched(tmp_path: Path) -> None:
    assert write(tmp_path, {"a": b"1", "b": b"1"}) == ["a", "b"]
    os.utime(tmp_path / "a", (1, 1))
    assert write(tmp_path, {"a": b"1", "b": b"2"}) == ["b"]
    assert (tmp_path / "a").stat().st_mtime == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x"])
def test_paths_outside_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(RefusedError, match="not below"):
        write(tmp_path / "root", {path: b""})


@pytest.mark.parametrize("link", ["compose", "compose/prod.yaml", "Dockerfile"])
def test_links_that_lead_out_are_refused_before_anything_is_written(tmp_path: Path, link: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(outside if link == "compose" else outside / "file")
    with pytest.raises(RefusedError, match="a link leads it out"):
        write(root, {"A": b"", "compose/prod.yaml": b"ours", "Dockerfile": b"ours"})
    assert not (root / "A").exists()
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("file", "theirs")]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_takes_no_files_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A full disk keeps nobody from looking at what runs."""

    whole = files.folder

    def full(path: Path, within: Path | None = None, *, create: bool = True) -> Any:
        if create and path.is_relative_to(tmp_path):
            raise OSError(number, os.strerror(number))
        return whole(path, within, create=create)

    monkeypatch.setattr(files, "folder", full)
    found = lay_out(render_profile(profile()), profile(), tmp_path)
    assert found.temporary is not None and (found.folder / "Dockerfile").is_file()


def test_no_command_changes_the_files_that_another_one_uses(tmp_path: Path) -> None:
    one, two = (profile(ipc=ipc) for ipc in ("private", "host"))
    first, second, again = (lay_out(render_profile(used), used, tmp_path).folder for used in (one, two, one))
    assert first == again != second
    text, other = ((folder / one.compose_file).read_text() for folder in (first, second))
    assert ("ipc: host" in text, "ipc: host" in other) == (False, True)
