"""A checkout that is gone when a container starts again: before anything ends, and where only Compose can see it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.compose import Compose
from envgen.engine.values import ContainerMount, ExecResult, Image
from envgen.errors import EnvgenError
from envgen.lock.model import ProfileLock
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.serve import preflight
from envgen.serve.start import Start, compose_up

FILE = """\
version: 1
name: lab
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: 12.1a}
    gpu: none
    sources:
      lib: {origin: {checkout: ../src/lib}, package: lib, distribution: lib, mount: /code/lib}
    services:
      web: {command: [web], mounts: {models: {path: /models, host: models, read_only: true}}}
"""
# What Docker 28.5 with runc 1.1 wrote for `docker compose restart` and `docker compose start`.
RESTART = (
    "Error response from daemon: Cannot restart container c3118ffc939c: failed to create task for container: failed to "
    "create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during "
    'container init: error mounting "FOLDER" to rootfs at "/code/lib": stat FOLDER: no such file or directory'
)
START = 'Error response from daemon: invalid mount config for type "bind": bind source path does not exist: FOLDER/.git'
LINES = {"restart": RESTART, "up": START}


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/envgen.yaml").write_text(FILE)
    return load_project(file=tmp_path / "p/envgen.yaml", environ={}).project.profiles["dev"]


class Stub:
    """An engine on this machine."""

    def info(self) -> Any:
        return SimpleNamespace(local=True)

    def containers(self, *_: object, **__: object) -> tuple[()]:
        return ()

    def steps(self, _image: str) -> list[str]:
        return []


ENGINE: Any = Stub()


def on(profile: Profile, root: Path, service: str = "web", **values: Any) -> LiveService:
    return LiveService(Deployment(profile, root).with_cached(engine=ENGINE, **values), service)


@pytest.mark.parametrize("verb", LINES)
def test_what_compose_says_is_one_sentence_of_ours(tmp_path: Path, profile: Profile, verb: str) -> None:
    line, root = LINES[verb].replace("FOLDER", str(tmp_path / "src/lib")), tmp_path / "p"
    refused = preflight.changed_meanwhile(on(profile, root), ["Container lab-dev-web-1  Starting", line])
    assert refused is not None and refused.exit_code == 6
    (problem,) = refused.problems
    assert problem.message == f"web was not started: sources.lib: folder {tmp_path / 'src/lib'} does not exist"
    assert problem.hint == (
        "bring it back, or write `sources: {lib: {origin: {checkout: /path/to/lib}}}` below profiles.dev in "
        "envgen.local.yaml; then: envgen up web --profile dev"
    )


@pytest.mark.parametrize("gone", ["/elsewhere/lib", "TMP/src/lib/.git"])
def test_what_only_the_old_container_has(tmp_path: Path, profile: Profile, gone: str) -> None:
    (tmp_path / "src/lib").mkdir(parents=True)
    gone = gone.replace("TMP", str(tmp_path))
    line = RESTART.replace("FOLDER", gone)
    refused = preflight.changed_meanwhile(on(profile, tmp_path / "p"), [line])
    assert refused is not None
    (problem,) = refused.problems
    assert problem.message == f"web was not started: its container was made with {gone}, which is no longer there"
    assert problem.hint == "to make it with what the profile names: envgen up web --profile dev"


def test_a_file_that_the_image_lacks_is_another_matter(tmp_path: Path, profile: Profile) -> None:
    line = 'exec: "vllm": executable file not found in $PATH'
    assert preflight.changed_meanwhile(on(profile, tmp_path), [line]) is None


def test_up_uses_it(tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    line = START.replace("FOLDER", str(tmp_path / "src/lib"))

    def stream(_self: Compose, *_: str, on_line: Any, timeout: float) -> ExecResult:
        on_line(line)
        return ExecResult(1, b"", b"")

    monkeypatch.setattr(Compose, "stream", stream)
    compose = Compose(SimpleNamespace(host="unix:///x"), (), tmp_path / "p/compose", "p")  # type: ignore[arg-type]
    start = Start(on(profile, tmp_path / "p", compose=compose), cast(Any, None), lambda _line: None)
    with pytest.raises(EnvgenError) as raised:
        compose_up(start)
    assert f"sources.lib: folder {tmp_path}/src/lib does not exist" in str(raised.value)


def test_what_would_not_start_again_is_not_ended(tmp_path: Path, profile: Profile) -> None:
    """Only what the container mounts: an edited file keeps nobody from a restart."""
    root, checkout, models = tmp_path / "p", tmp_path / "src/lib", tmp_path / "p/models"
    mounts = (ContainerMount(str(checkout), "/code/lib"), ContainerMount(str(models), "/models"))
    web: Any = SimpleNamespace(service="web", mounts=mounts)
    with pytest.raises(preflight.PreflightError) as raised:
        preflight.check_again(on(profile, root), web)
    assert [problem.message for problem in raised.value.problems] == [
        "web was not started:",
        f"sources.lib: folder {checkout} does not exist",
        f"services.web.mounts.models: {models} does not exist",
    ]
    preflight.check_again(on(profile, root), SimpleNamespace(service="web", mounts=()))  # type: ignore[arg-type]
    (checkout / "lib").mkdir(parents=True)
    (checkout / "lib/__init__.py").touch()
    models.mkdir()
    preflight.check_again(on(profile, root), web)
    moved = ContainerMount(str(tmp_path / "before/models"), "/models")  # with the folder of the project
    with pytest.raises(preflight.PreflightError, match=r"made with .*before/models, which is no longer there"):
        preflight.check_again(on(profile, root), SimpleNamespace(service="web", mounts=(moved,)))  # type: ignore[arg-type]


def test_a_checkout_behind_a_link(tmp_path: Path, profile: Profile) -> None:
    """A container has the folder itself, as the variables for Compose name it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "src").symlink_to("disk")
    web: Any = SimpleNamespace(service="web", mounts=(ContainerMount(str(tmp_path / "disk/lib"), "/code/lib"),))
    with pytest.raises(preflight.PreflightError, match=r"sources\.lib: folder .*/disk/lib does not exist"):
        preflight.check_again(on(profile, tmp_path / "p"), web)


def test_checkouts_that_cannot_be_right(tmp_path: Path) -> None:
    names = ("gone", "empty", "wrong", "swapped", "good", "flat")
    line = "{0}: {{origin: {{checkout: {0}}}, package: {0}, distribution: {0}, mount: /workspace/{0}}}"
    sources = f"sources: {{{', '.join(map(line.format, names))}}}"
    (tmp_path / "envgen.yaml").write_text(re.sub(r"sources:\n .*", sources, FILE))
    for path in (
        "wrong/x/__init__.py",
        "swapped/good/__init__.py",
        "good/good/__init__.py",
        "flat/src/flat/__init__.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / "empty").mkdir()
    profile = load_project(file=tmp_path / "envgen.yaml", environ={}).project.profiles["dev"]
    assert [problem.message for problem in preflight._mounts(on(profile, tmp_path).deployment)] == [
        f"sources.gone: folder {tmp_path}/gone does not exist", f"sources.empty: {tmp_path}/empty is empty",
        f"sources.wrong: {tmp_path}/wrong has no Python package wrong",
        f"sources.swapped: {tmp_path}/swapped has no Python package swapped; it looks like good",
    ]  # fmt: skip


def test_a_missing_checkout_of_a_release_is_offered_as_the_clone_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").mkdir()
    shipped = Path(__file__).parents[3] / "envgen.yaml"
    profile = load_project(file=shipped, environ={}, local=False).project.profiles["dev"]
    monkeypatch.chdir(tmp_path / "p")
    found = preflight._mounts(on(profile, tmp_path / "p", "dev").deployment)
    hints = [problem.hint.partition(", or write")[0] for problem in found if problem.hint]
    version = profile.sources["vllm"].binaries
    assert version is not None
    assert hints == [  # which FlashInfer fits is in the lock; without one, in the checkout of vLLM
        '`git clone --branch "v$(sed -n s/^flashinfer-python==//p ../vllm/requirements/cuda.txt)" --recurse-submodules '
        "https://github.com/flashinfer-ai/flashinfer.git ../flashinfer`",
        f"`git clone --branch v{version.version} --recurse-submodules https://github.com/vllm-project/vllm.git "
        "../vllm`",
    ]


@pytest.mark.parametrize("mode", ["production", "development"])
@pytest.mark.parametrize("is_locked", [True, False])
def test_the_hint_of_a_missing_image_works_when_it_is_typed(tmp_path: Path, mode: str, is_locked: bool) -> None:
    """`envgen build` refuses a production profile without a lock."""
    one = f"{{mode: {mode}, gpu: none, base: {{image: base:1}}, services: {{s: {{command: [x]}}}}}}"
    (tmp_path / "envgen.yaml").write_text(f"version: 1\nname: lab\nprofiles: {{p: {one}}}\n")
    profile = load_project(file=tmp_path / "envgen.yaml", environ={}).project.profiles["p"]
    locked = ProfileLock(None, {}, {}) if is_locked else None
    deployment = Deployment(profile, tmp_path).with_cached(engine=ENGINE, image=None, locked=locked)
    (problem,) = deployment.image_problems
    lock = "" if is_locked or mode == "development" else "envgen lock --profile p && "
    assert problem.message == "the image lab:p is not built" and problem.hint == f"{lock}envgen build --profile p"
    image = Image("sha256:1", {}, "", 1, "arm64", ("lab:p",), {})
    (problem,) = deployment.with_cached(image=image, outdated=()).image_problems
    assert problem.message == "the image lab:p was not built by envgen"
