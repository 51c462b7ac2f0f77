"""The whole `envgen doctor --json` on containers that only a real engine makes; the other findings are in unit tests.

tests/unit/doctor/test_doctor_recorded.py fires each finding, from recordings that test_doctor.py compares with the lab.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from doctor_lab import IMAGE, PP, PROJECT, W, docker, path_of, project
from doctor_page import DESCRIBED

from envgen.cli import run_line as envgen
from envgen.doctor import collect
from envgen.profile.load import load_project, select
from envgen.render.outputs import render_profile

pytestmark = pytest.mark.engine

Report = dict[str, Any]
CACHE = "caches={flashinfer: {path: /root/.cache/flashinfer}}"
ENVIRONMENT = {"FLASHINFER_JIT_VERBOSE": "0"}  # what the good container has beside the profile's own


class Stage:
    """Makes containers as Compose would label them, and asks doctor about them."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0

    def folder(self, name: str) -> Path:
        found = self.root / name
        found.mkdir()
        return found

    def labelled(self, tag: str, base: str = IMAGE, **labels: str) -> str:
        """An image of the lab with labels, as a build would set them."""
        name = f"{IMAGE}:{tag}-{PROJECT}"
        lines = [f"FROM {base}", *(f'LABEL dev.envgen.{key}="{value}"' for key, value in labels.items())]
        context = self.folder(f"image-{tag}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        docker("build", "-q", "-t", name, str(context))
        return name

    def start(
        self,
        *,
        variant: str = "hook",
        path: str = PP,
        profile: str = "dev",
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        image: str = IMAGE,
        command: Sequence[str] = (),
        script: str = "",
        init: bool = True,
    ) -> str:
        """A container; ``script`` runs in it once it is up."""
        self.count += 1
        name = f"{PROJECT}-scene-{self.count}"
        values = {"PATH": path_of(variant), **({"PYTHONPATH": path} if path else {}), **(env or {})}
        labels = {"project": f"{PROJECT}-{profile}", "service": "dev" if profile == "dev" else "serve"}
        docker(
            "run", "-d", "--network", "none", "--name", name, *(["--init"] if init else []),
            *(word for key, value in labels.items() for word in ("--label", f"com.docker.compose.{key}={value}")),
            *(word for key, value in values.items() for word in ("-e", f"{key}={value}")), *args, image, *command,
        )  # fmt: skip
        if script:
            docker("exec", name, "sh", "-ec", script)
        return name

    def doctor(
        self, *words: str, profile: str = "dev", sets: Sequence[str] = (), variant: str = "hook", **values: str
    ) -> Report:
        """What the command says, in this process."""
        folder = self.root / f"project-{self.count}-{time.monotonic_ns()}"
        folder.mkdir()
        file = project(folder, variant=variant, **values)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            envgen(
                ["doctor", "--json", "-f", str(file), "-p", profile, *words, *(w for s in sets for w in ("--set", s))]
            )
        return dict(json.loads(out.getvalue()))

    def clear(self) -> None:
        found = docker("ps", "-aq", "--filter", f"name=^{PROJECT}-scene-").split()
        if found:
            docker("rm", "-f", "-v", *found)

    def remove_images(self) -> None:
        found = docker("image", "ls", "-q", "--filter", f"reference={IMAGE}:*-{PROJECT}").split()
        if found:
            docker("image", "rm", "-f", *set(found))


def site(variant: str) -> str:
    return f"/venv/{variant}/lib/python3.11/site-packages"


def metadata(variant: str, name: str, version: str) -> str:
    """Shell that makes pip believe in a distribution: its metadata and nothing else."""
    folder = f"{site(variant)}/{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    return f"mkdir -p {folder} && printf '{text}' > {folder}/METADATA && touch {folder}/RECORD\n"


def note(name: str, document: Any) -> str:
    """Shell that leaves what a build leaves in /opt/envgen."""
    return f"mkdir -p /opt/envgen && cat > /opt/envgen/{name} <<'NOTE'\n{json.dumps(document)}\nNOTE\n"


def locked(**versions: str) -> dict[str, Any]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    return {"inputs": {f"linux/{machine} pip deps {name}": version for name, version in versions.items()}}


def good(stage: Stage) -> Report:
    """Everything as it should be: mounts, caches, versions that fit, a real compiler that knows the GPU."""
    sets = [CACHE, "build.max_jobs=1",
            "services.dev.args={gpu-memory-utilization: 0.001}",
            "cuda.home=/opt/cuda", f"services.dev.env={json.dumps(ENVIRONMENT)}"]  # fmt: skip
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sets.append(f"services.dev.ports=['127.0.0.1:{sock.getsockname()[1]}:8000']")
    folder = stage.folder("good")
    sets.append(f"image={IMAGE}:good-{PROJECT}")
    profile = select(load_project(file=project(folder), environ={}, sets=sets).project, "dev")
    digest = render_profile(profile, root=folder).digest
    image = stage.labelled("good", profile="dev", render=digest)
    script = metadata("hook", "opencv", "4.10.0") + metadata("hook", "flashinfer-cubin", "0.5.3")
    script += metadata("hook", "torch", "2.10.0") + note("manifest.json", locked(opencv="4.10.0"))
    script += note("protected.json", {"torch": {"version": "2.10.0"}})
    script += 'echo "{\\"cuda\\": {\\"version\\": \\"13.0.88\\"}}" > /opt/cuda/version.json\n'
    stage.start(
        image=image, script=script, env={**collect.service_env(profile, "dev"), "MAX_JOBS": "1", **ENVIRONMENT},
        args=["-v", f"{PROJECT}-scene:{PP}", "-v", f"{PROJECT}-scene-cache:/root/.cache/flashinfer"],
    )  # fmt: skip
    try:
        return stage.doctor(sets=sets)
    finally:
        stage.clear()
        docker("volume", "rm", "-f", f"{PROJECT}-scene", f"{PROJECT}-scene-cache")


def bad_notes(stage: Stage) -> Report:
    """An unhealthy container with a broken manifest, a stale egg-info, prebuilt kernels."""
    script = "mkdir -p /opt/envgen && echo '{' > /opt/envgen/manifest.json\n"
    script += f"mkdir {PP}/flashinfer_python.egg-info && cd {PP} && "
    script += "printf 'Name: flashinfer-python\\nVersion: 0.5.1\\n' > flashinfer_python.egg-info/PKG-INFO\n"
    script += f"mkdir -p {PP}/flashinfer/data/aot/page && touch {PP}/flashinfer/data/aot/page/page.so\n"
    script += f"rm {PP}/flashinfer/_build_meta.py\n"
    stage.start(script=script, args=["--health-cmd", "false", "--health-interval", "200ms", "--health-retries", "1"])
    time.sleep(0.8)
    return stage.doctor(sets=[CACHE])


def restart_loop(stage: Stage) -> Report:
    name = stage.start(args=["--restart", "unless-stopped"], command=["false"])
    for _ in range(600):  # Docker waits twice as long each time: after the sixth it is not running for six seconds
        if int(docker("inspect", "-f", "{{.RestartCount}}", name)) >= 6:
            break
        time.sleep(0.1)
    return stage.doctor("dev")


def checkout(stage: Stage, name: str) -> Path:
    """A folder on this machine that looks like a checkout."""
    folder = stage.folder(name)
    (folder / "flashinfer").mkdir()
    (folder / "flashinfer" / "__init__.py").write_text("")
    return folder


def mounts(stage: Stage) -> Report:
    """One container with a mount of each kind; doctor is asked about one after the other."""
    folders = {name: checkout(stage, name) for name in ("elsewhere", "moved")}
    folders |= {name: stage.folder(name) for name in ("empty", "another")}
    (folders["another"] / "README").write_text("")
    args = [f"{folder}:/mounts/{name}" for name, folder in folders.items()]
    stage.start(args=[word for text in args for word in ("-v", text)])
    # Another worktree than the profile names is mounted: right inside, and not what the user edits.
    named = {**folders, "elsewhere": stage.folder("worktree"), "nowhere": folders["empty"]}
    # The checkout makes room for another clone of that name: the container keeps the first.
    folders["moved"].rename(folders["moved"].with_name("moved-before"))
    checkout(stage, "moved")
    reports = [
        stage.doctor(mount=f"/mounts/{name}", sets=[f"sources.flashinfer.origin.checkout={folder}"])
        for name, folder in named.items()
    ]
    return {"findings": [finding for report in reports for finding in report["findings"]]}


def mount_of_another_user(stage: Stage) -> Report:
    folder, cache = checkout(stage, "mine"), stage.folder("cache")
    folder.chmod(0o755)
    stage.start(args=["--user", "1234:1234", "-v", f"{folder}:{PP}", "-v", f"{cache}:/cache"])
    sets = [f"sources.flashinfer.origin.checkout={folder}", "caches={flashinfer: {path: /cache}}"]
    return stage.doctor(sets=sets)


def trap(stage: Stage) -> Report:
    stage.start(path="")
    return stage.doctor(python_path="")


# Scene -> the findings that it makes. `good` makes none but the failing import, for want of torch.
SCENES: dict[Callable[[Stage], Report], set[tuple[str, str]]] = {
    good: {("import.truth", "fails")},
    trap: {("import.truth", "trap"), ("image.render", "foreign"), ("container.env", "differ"),
           ("mounts.sources", "no-mount")},
    bad_notes: {("container.running", "unhealthy"), ("python.start", "part"), ("import.metadata", "twice"),
                ("flashinfer.data", "unknown-version"), ("flashinfer.prebuilt", "masked"),
                ("mounts.caches", "not-mounted")},
    restart_loop: {("container.running", "ended"), ("container.restart", "looping")},
    mounts: {("mounts.sources", case)
             for case in ("elsewhere", "moved", "missing", "empty", "no-package")},
    mount_of_another_user: {("mounts.sources", "owner"), ("mounts.caches", "not-writable")},
}  # fmt: skip


@pytest.fixture(scope="module")
def stage(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    made.clear()
    yield made
    made.clear()
    made.remove_images()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scene(stage: Stage, scene: Callable[[Stage], Report]) -> None:
    """It makes these findings, and none that the page does not describe."""
    try:
        findings = scene(stage)["findings"]
    finally:
        stage.clear()
    bad = [finding for finding in findings if finding["severity"] in ("warning", "error")]
    seen = {(finding["check"], finding["evidence"].get("case")): finding for finding in bad}
    assert SCENES[scene] <= {*seen}
    assert [found for case, found in seen.items() if DESCRIBED.get(case) != found["severity"]] == []
    if scene is good:
        assert {case for case in seen if not case[0].startswith("host.")} == SCENES[good]
    if scene is trap:
        found = seen["import.truth", "trap"]
        assert "namespace-package trap" in found["title"] and f"__path__ = [{PP}]" in found["seen"]
        assert found["evidence"]["ways"] == [["-c", W], ["-m", W]]
        assert found["remedy"] == {"kind": "profile", "text": f"python_path: [{PP}]"}
