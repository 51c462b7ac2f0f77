"""`envgen build` on a real engine: images, labels, what is rebuilt and what isn't, failures of every kind, secrets."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local import until
from projects import BASE, Project, docker, interrupt, lean_base

from envgen.engine import buildx
from envgen.engine.client import Engine
from envgen.explain import Circumstances
from envgen.explain.read import cause_of

pytestmark = pytest.mark.engine

FILE = """
profiles:
  prod:
    mode: production
    description: A profile of the tests
    services: {serve: {command: [sleep, infinity]}}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    """A project whose image is built."""
    made = make_project("envgentestbuild", FILE)
    made.envgen("render")
    made.envgen("build")
    return made


def test_the_image_says_what_it_is(project: Project, engine: Engine) -> None:
    image = engine.image("envgentestbuild:prod")
    document = project.envgen("build", "--json").json
    assert image is not None and document["image_id"] == image.id and document["up_to_date"] is True
    assert image.labels["dev.envgen.project"] == "envgentestbuild"
    assert image.labels["dev.envgen.profile"] == "prod"
    assert image.labels["dev.envgen.render"] == document["digest"]
    assert "dev.envgen.lock" not in image.labels
    assert image.labels["org.opencontainers.image.title"] == "envgentestbuild prod"
    assert project.envgen("build").out.startswith("envgentestbuild:prod is up to date (")


def test_status_and_build_name_what_made_the_image_older(make_project: Callable[..., Project]) -> None:
    """And what the image is not built from is not named, nor built for."""
    project = make_project("envgentestolder", FILE + "    dockerfile_extra: {end: [COPY note.txt /]}\n")
    (project.root / "note.txt").write_text("one")
    project.envgen("build")
    assert project.envgen("status", "--json").json["image"]["changed"] == []
    (project.root / "note.txt").write_text("two")
    file = project.root / "envgen.yaml"
    file.write_text(file.read_text().replace("12.1a", "12.1f").replace("sleep, infinity", "sleep, '9'"))
    lines = project.envgen("status").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("image "))
    assert [line.strip() for line in lines[at + 1 : at + 3]] == ["cuda.arch_list: 12.1a → 12.1f", "note.txt changed"]
    assert "lock" in lines[at + 3]
    refused = project.envgen("up", "serve", code=6)
    assert "differs from the profile (cuda.arch_list: 12.1a → 12.1f; note.txt changed)" in refused.err
    built = project.envgen("build")
    assert "envgentestolder:prod differs: cuda.arch_list: 12.1a → 12.1f; note.txt changed" in built.err
    assert project.envgen("build", "--json").json["up_to_date"] is True


def test_a_removed_or_replaced_image_is_built_again(project: Project, engine: Engine) -> None:
    docker("image", "rm", "envgentestbuild:prod")
    assert project.envgen("build", "--json").json["up_to_date"] is False
    docker("tag", BASE, "envgentestbuild:prod")
    document = project.envgen("build", "--json").json
    assert document["up_to_date"] is False
    image = engine.image("envgentestbuild:prod")
    assert image is not None and image.id == document["image_id"]


def commit(_folder: Path) -> None:
    container = docker("create", "envgentestbuild:prod", "true").strip()
    docker("commit", container, "envgentestbuild:prod")
    docker("rm", container)


def build_upon(folder: Path) -> None:
    folder.joinpath("Dockerfile").write_text('FROM envgentestbuild:prod\nENV A=1\nENTRYPOINT ["/bin/sh"]\n')
    docker("build", "--quiet", "--tag", "envgentestbuild:prod", str(folder))


@pytest.mark.parametrize(
    ("make", "what"), [(commit, "was made by `docker commit`"), (build_upon, "was built FROM an image of envgen")]
)
def test_an_image_made_of_the_image_is_not_what_was_built(
    project: Project, tmp_path: Path, make: Callable[[Path], None], what: str
) -> None:
    """Both keep the labels; what was changed in them is in nobody's Dockerfile."""
    project.envgen("build")
    built = project.envgen("status", "--json").json["image"]
    make(tmp_path)
    status = project.envgen("status", "--json").json["image"]
    assert status["state"] != built["state"] == "current"
    assert what in project.envgen("up", "serve", code=6).err
    assert project.envgen("build", "--json").json["up_to_date"] is False
    assert project.envgen("status", "--json").json["image"]["state"] == "current"


@pytest.mark.parametrize("name", ["per%s", "a\nb", "a\x1b[31mb"])
def test_a_service_starts_in_a_folder_with_an_odd_name(project: Project, tmp_path: Path, name: str) -> None:
    """Compose makes a URL of the folder that it runs in."""
    root = tmp_path / name
    root.mkdir()
    (root / "envgen.yaml").write_text((project.root / "envgen.yaml").read_text())
    odd = Project(root, project.name)
    odd.envgen("build")
    odd.envgen("up", "serve")
    odd.envgen("down")


def test_a_new_base_image_of_the_same_name_is_seen(make_project: Callable[..., Project]) -> None:
    docker("tag", BASE, "envgentestmoving:1")
    try:
        project = make_project("envgentestmoved", FILE + "    base: {image: envgentestmoving:1}\n")
        project.envgen("build")
        assert project.envgen("build", "--json").json["up_to_date"] is True
        docker("build", "-q", "-t", "envgentestmoving:1", "-", timeout=60, stdin=f"FROM {BASE}\nLABEL moved=1\n")
        assert project.envgen("build", "--json").json["up_to_date"] is False
    finally:
        docker("image", "rm", "-f", "envgentestmoving:1", check=False)


def test_a_new_wheel_in_the_wheelhouse_is_seen(project: Project) -> None:
    (project.root / "wheels").mkdir()
    words = ("--json", "--set", "build.wheelhouse=wheels", "--set", "pip.deps=[pip]")
    project.envgen("build", *words)
    assert project.envgen("build", *words).json["up_to_date"] is True
    # New to the engine, too: of what an earlier run built, the layers are in its cache.
    (project.root / "wheels" / "note.txt").write_text(str(time.time_ns()))
    assert project.envgen("build", *words).json["up_to_date"] is False
    project.envgen("build")


def test_plain_progress_and_a_log_of_everything(project: Project) -> None:
    done = project.envgen("build", "--no-cache")
    lines = done.err.splitlines()
    assert any(re.match(r"#\d+ \[.* 2/\d+\] RUN ", line) for line in lines)
    assert done.out.startswith("built envgentestbuild:prod (")
    log = max((project.root / ".envgen" / "logs").glob("build-prod-*.log"))
    text = log.read_text()
    assert text.startswith("$ ") and "protect verify" in text and "ended with 0" in text


def test_a_failing_step_is_shown_with_its_cause(project: Project) -> None:
    words = ("--set", "apt.runtime=[envgen-no-such-package]", "--set", "build.max_jobs=4")
    done = project.envgen("build", *words, code=4)
    assert re.search(r"failed in step '\[.*\] RUN .*envgen-no-such-package' \(exit code 100\)", done.err)
    assert "Unable to locate package envgen-no-such-package" in done.err
    assert "apt knows no such package" in done.err and "the whole output is in .envgen/logs/build-prod-" in done.err
    document = project.envgen("build", *words, "--json", code=4).json
    assert document["ok"] is False and document["failure"]["cause"]["rule"] == "debian_package"
    assert document["failure"]["exit_code"] == 100 and document["image_id"] == ""
    assert project.envgen("build", "--json").json["ok"] is True


# --- causes, provoked for real ----------------------------------------------------------------------------------------

CAUSES = [
    ("killed", "RUN echo compiling; sh -c 'kill -9 $$'; exit $?"),
    ("no_space", "RUN --mount=type=tmpfs,target=/t,size=1m dd if=/dev/zero of=/t/x bs=1M count=4"),
    ("dockerfile", "RUNN true"),
]


def build(folder: Path, text: str, **more: object) -> buildx.BuildResult:
    (folder / "Dockerfile").write_text(text)
    return buildx.build(buildx.BuildRequest(folder / "Dockerfile", folder, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "text"), CAUSES)
def test_causes(engine: Engine, tmp_path: Path, kind: str, text: str) -> None:
    result = build(tmp_path, f"FROM {BASE}\n{text}\n")
    assert not result.ok
    lines = [*result.lines, *result.notes.splitlines()]
    cause = cause_of(lines, Circumstances(exit_code=result.exit_code))
    assert cause is not None and cause.rule == kind, lines


# --- the request, carried out -----------------------------------------------------------------------------------------


def test_a_path_with_commas_and_blanks(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / 'a, "b" = c'
    folder.mkdir()
    (folder / "secret").write_text("swordfish")
    text = f'FROM {BASE}\nRUN --mount=type=secret,id=s test "$(cat /run/secrets/s)" = swordfish\n'
    result = build(folder, text, secrets={"s": folder / "secret"})
    assert result.ok, result.notes


ON_A_TERMINAL = """
import sys
from pathlib import Path
from envgen.engine import buildx, process
def build(folder, **how):
    return buildx.build(buildx.BuildRequest(folder / "Dockerfile", folder), lines.append, **how)
def beside(*words, **more):  # another build begins first
    return build(folder / "other") and on_terminal(*words, **more)
lines, folder, on_terminal, process.on_terminal = [], Path(sys.argv[1]), process.on_terminal, beside
result = build(folder, show=True)
print(repr((result.code, result.exit_code, result.lines[-1], any(result.lines[-1] in line for line in lines))))
"""


@pytest.mark.parametrize(
    ("instruction", "exit_code", "last"),
    [
        ("RUN (echo broken; exit 9) >&2", 9, "broken"),
        ("RUNN true", None, "ERROR: dockerfile parse error on line 2: unknown instruction: RUNN (did you mean RUN?)"),
    ],
)
def test_on_a_terminal_it_is_buildkits_own_display_and_the_log_is_whole(
    engine: Engine, tmp_path: Path, instruction: str, exit_code: int | None, last: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/Dockerfile").write_text(f"FROM {BASE}\nRUN echo {time.time()}\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\n{instruction}\n")
    ours, theirs = os.openpty()
    argv = [sys.executable, "-c", ON_A_TERMINAL, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs, text=True) as child:
        os.close(theirs)
        drawn = bytearray()
        with contextlib.suppress(OSError):  # the terminal's other end was closed
            while data := os.read(ours, 65536):
                drawn += data
        assert child.stdout and child.stdout.read().strip() == repr((1, exit_code, last, True))
    os.close(ours)
    assert b"[+] Building" in drawn and b"\x1b[" in drawn


def test_secrets_are_in_no_layer_and_no_history(make_project: Callable[..., Project], tmp_path: Path) -> None:
    """A CA file, a proxy with a password, a token of the shell and the number of jobs: none of them stays."""
    base = lean_base("envgentestsecret:base")
    project = make_project("envgentestsecret", f"{FILE}    base: {{image: {base}}}\n    secrets: [HF_TOKEN]\n")
    marks = ("PLANTED-CA-7c1e", "PLANTED-PROXY-91ab", "PLANTED-TOKEN-55d0")
    (project.root / "ca.pem").write_text(f"# {marks[0]}\n" + ca_certificate())
    env = {"NO_PROXY": f"{marks[1]}.example", "HF_TOKEN": marks[2]}
    project.envgen("build", "--set", "network.ca_certificates=ca.pem", env=env)
    archive = tmp_path / "image.tar"
    docker("save", "-o", str(archive), "envgentestsecret:prod")
    seen = docker("history", "--no-trunc", "envgentestsecret:prod") + docker("inspect", "envgentestsecret:prod")
    with tarfile.open(archive) as image:
        for member in image:
            content = image.extractfile(member)
            data = content.read() if content else b""
            for mark in marks:
                assert mark.encode() not in data, f"{mark} is in {member.name}"
    docker("image", "rm", "-f", base)
    for mark in marks:
        assert mark not in seen
    for log in (project.root / ".envgen" / "logs").iterdir():
        assert not any(mark in log.read_text() for mark in marks)


def ca_certificate() -> str:
    """The first certificate of this machine's own bundle: a real one, which does no harm."""
    text = Path("/etc/ssl/certs/ca-certificates.crt").read_text()
    return text[: text.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def sleeping(seconds: str) -> bool:
    """Does a step of a build, which is a process of this machine, still sleep?"""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
        except OSError:
            continue
    return False


def test_ctrl_c_is_one_line_and_nothing_half_written(make_project: Callable[..., Project]) -> None:
    """And the engine works no longer."""
    seconds = f"31{os.getpid()}"
    project = make_project("envgentestinterrupt", f"{FILE}    dockerfile_extra: {{end: [RUN sleep {seconds}]}}\n")
    child = project.start("build")
    until(lambda: sleeping(seconds))
    done = interrupt(child)
    assert done.code == 130 and done.err.rstrip().endswith("envgen: interrupted") and "Traceback" not in done.err
    until(lambda: not sleeping(seconds))
    assert not (project.root / ".envgen" / "state").exists()
    assert docker("images", "-q", "envgentestinterrupt:prod") == ""
    assert not [path for path in project.root.rglob(".*.*") if path.suffix in (".tmp", ".new")]
    assert project.envgen("build", "--set", "dockerfile_extra.end=[]", "--json").json["ok"] is True
