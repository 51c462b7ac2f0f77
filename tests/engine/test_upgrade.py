"""`envgen upgrade`, its way back, and kills at each step, on a real engine with an index of small packages."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterator

import pytest
from local import free_port
from projects import Project, docker, lean_base
from toy_index import RELEASES, index

pytestmark = pytest.mark.engine

NAME = "envgentestupgrade"
BASE = f"{NAME}base:1"
TEXT = """\
profiles:
  prod:
    # the base without compilers
    mode: production
    base: {image: "BASE"}
    pip: {extra_indexes: ["INDEX"], tools: [llama-benchy]}
    sources:
      toy:
        package: toyserver
        distribution: toyserver
        mount: /workspace/toy
        origin: {wheel: toyserver==1.0}  # a new release is this line
        install: {dependencies: true}
    services:
      serve:
        command: [python3, -m, toyserver]
        args: {port: 8000, greeting: hello}
        ports: ["127.0.0.1:PORT:8000"]
        ready: {port: 8000, model: toy, prompt: one}
"""
KEEP = ("--yes", "--keep", "--json")


class Toy(Project):
    """The project, and what its engine has."""

    def state(self) -> dict[str, bytes]:
        """The files that a user has."""
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        mine = [path for path in paths if {".envgen", "results"}.isdisjoint(path.relative_to(self.root).parts)]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in mine}

    def put(self, state: dict[str, bytes]) -> None:
        """Write the files of a state, and start what they describe; the image is found by its labels."""
        for path, content in state.items():
            (self.root / path).write_bytes(content)
        self.envgen("up", "serve", "--recreate")

    def image(self, tag: str = "prod") -> str:
        return docker("image", "inspect", "-f", "{{.Id}}", f"{self.name}:{tag}", check=False)

    def runs(self) -> str:
        """The release that serves, as its log says; "" if none runs."""
        container = docker("ps", "-q", "--filter", f"name={self.name}-prod-serve")
        return docker("logs", container).splitlines()[0].split()[1] if container else ""


@pytest.fixture(scope="module")
def toy(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    lean_base(BASE)
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with index(tmp_path_factory.mktemp("index"), gateway) as address:
        text = TEXT.replace("BASE", BASE).replace("INDEX", address).replace("PORT", str(free_port()))
        made = make_project(NAME, text)
        toy = Toy(made.root, made.name)
        toy.envgen("lock")
        toy.envgen("render")
        toy.envgen("up", "serve", "--yes")
        yield toy
        docker("image", "rm", "-f", f"{NAME}:prod-before", f"{NAME}:prod-candidate", BASE, check=False)


def test_nothing_and_something_newer(toy: Toy) -> None:
    found = toy.envgen("upgrade", "--json", code=1).json
    assert {"name": "toyserver", "before": "1.0", "after": "3.0"} in found["newer"]


def test_on_paper_nothing_changes(toy: Toy) -> None:
    before, image = toy.state(), toy.image()
    refused = toy.envgen("upgrade", "toy==1.1", code=6)
    assert "toyserver" in refused.err and "1.0" in refused.err and "--yes" in refused.err
    assert "one start" in refused.err
    assert "toyserver==9" in toy.envgen("upgrade", "toy==9", "--yes", code=7).err
    assert "unknown input" in toy.envgen("upgrade", "nothing", "--yes", code=2).err
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")


def test_up_build_asks_once_and_refuses_before_it_builds(toy: Toy) -> None:
    """A changed version: lock, image and the server that runs are one question, at the beginning."""
    before, image, file = toy.state(), toy.image(), toy.root / "envgen.yaml"
    file.write_text(file.read_text().replace("toyserver==1.0", "toyserver==1.1"))
    changed = toy.state()
    try:
        refused = toy.envgen("up", "serve", "--build", "--yes", code=6).err
        assert "replace   serve" in refused and "--build --yes --recreate" in refused, refused
        (toy.root / "nothing.pem").unlink(missing_ok=True)
        missing = ("--set", "network.ca_certificates=nothing.pem")
        assert "nothing.pem does not exist" in toy.envgen("up", "serve", "--build", "--yes", *missing, code=6).err
        code, shown = toy.on_a_terminal(b"n\n", "up", "serve", "--build")
        assert code == 6 and "nothing was done" in shown and shown.count("replace   serve") == 1, shown
        assert (toy.state(), toy.image(), toy.runs()) == (changed, image, "1.0")
        code, shown = toy.on_a_terminal(b"y\n", "up", "serve", "--build")
        assert (code, shown.count("[y/N]"), toy.runs()) == (0, 1, "1.1"), shown
    finally:
        toy.put(before)


@pytest.mark.nightly
def test_a_patch_that_does_not_fit(toy: Toy) -> None:
    """It fits the release that runs alone. The candidate is not built, and the server serves on."""
    (old,) = (text for name, version, _, text in RELEASES if (name, version) == ("toyserver", "1.0"))
    new = old.replace('print("toyserver 1.0"', 'print("toyserver 1.0 patched"')
    lines = [one.splitlines(keepends=True) for one in (old, new)]
    diff = "".join(difflib.unified_diff(lines[0], lines[1], "a/toyserver.py", "b/toyserver.py"))
    before, folder = toy.state(), toy.root / "patches/toy"
    folder.mkdir(parents=True)
    (folder / "0001-greeting.patch").write_text(f"Description: greeting\n\n{diff}")
    (folder / "series").write_text("0001-greeting.patch\n")
    text = before["envgen.yaml"].decode()
    (toy.root / "envgen.yaml").write_text(text.replace("        install:", "        patches: toy\n        install:"))
    try:
        toy.envgen("up", "serve", "--build", "--recreate", "--yes")
        patched = toy.state()
        refused = toy.envgen("upgrade", "toy==1.1", *KEEP, code=4)
        assert "0001-greeting" in refused.err
        assert toy.state() == patched and toy.runs() == "1.0"
    finally:
        shutil.rmtree(toy.root / "patches")
        toy.put(before)


@pytest.mark.nightly
def test_who_pins_it_and_what_the_owner_insists_on(toy: Toy) -> None:
    """As a FlashInfer that is newer than the one that vLLM pins."""
    file, before = toy.root / "envgen.yaml", toy.state()
    source = """\
      speed:
        package: toyspeed
        distribution: toyspeed
        mount: /workspace/speed
        origin: {wheel: toyspeed}
        install: {dependencies: true}
"""
    text = before["envgen.yaml"].decode()
    file.write_text(text.replace("    services:\n", source + "    services:\n"))
    try:
        toy.envgen("lock")
        stale = toy.envgen("upgrade", "speed==2.0", *KEEP, code=6)
        assert "could not be started again" in stale.err and "--build --recreate" in stale.err
        toy.envgen("up", "serve", "--build", "--recreate", "--yes")
        with_source = toy.state()
        refused = toy.envgen("upgrade", "speed==2.0", *KEEP, code=7)
        assert "toyserver==1.0" in refused.err and "toyspeed<2" in refused.err, refused.err
        assert "override: [toyspeed]" in refused.err
        assert toy.state() == with_source and toy.runs() == "1.0"
        file.write_text(
            file.read_text().replace("tools: [llama-benchy]", "tools: [llama-benchy], override: [toyspeed]")
        )
        toy.envgen("up", "serve", "--build", "--recreate", "--yes")
        left = toy.envgen("upgrade", "speed==2.0", *KEEP, code=1)
        assert "-50 %" in left.out and toy.runs() == "1.0"
    finally:
        toy.put(before)


@pytest.mark.nightly
def test_back_after_a_lock_and_a_build_by_hand(toy: Toy) -> None:
    """No trial: `lock` and `build` leave a way back, too; edits of services stay."""
    file, before, image = toy.root / "envgen.yaml", toy.state(), toy.image()
    text = file.read_text()
    file.write_text(text.replace("toyserver==1.0", "toyserver==1.1"))
    toy.envgen("lock")
    toy.envgen("build")
    toy.envgen("up", "serve", "--recreate")
    assert toy.runs() == "1.1" and toy.image("prod-before") == image
    file.write_text(file.read_text().replace("greeting: hello", "greeting: hi"))
    toy.envgen("upgrade", "--back")
    assert file.read_text() == text.replace("greeting: hello", "greeting: hi")
    assert (toy.image(), toy.runs()) == (image, "1.0")
    assert toy.state()["envgen.lock"] == before["envgen.lock"]
    file.write_text(text)
    toy.envgen("render")
    toy.envgen("up", "serve", "--recreate")
    assert toy.state() == before


def test_an_image_that_fits_is_found_by_its_labels(toy: Toy) -> None:
    """Without its name, and with no cache of builds: `build` builds nothing."""
    image = toy.image()
    docker("tag", f"{NAME}:prod", f"{NAME}:aside")
    docker("rmi", f"{NAME}:prod")
    docker("builder", "prune", "-af")
    done = toy.envgen("build")
    assert toy.image() == image and "nothing is built" in done.err
    docker("rmi", f"{NAME}:aside")


@pytest.mark.nightly
def test_nothing_runs(toy: Toy) -> None:
    """What starts is kept or left; nothing runs after one that was left."""
    before = toy.state()
    toy.envgen("down")
    left = toy.envgen("upgrade", "toy==1.3", *KEEP, code=5)
    assert "this release does not start" in left.out and "compared with nothing" in left.err
    assert (toy.state(), toy.runs()) == (before, "")
    toy.envgen("up", "serve")


def test_kept_and_back(toy: Toy) -> None:
    before, image = toy.state(), toy.image()
    kept = toy.envgen("upgrade", "toy==1.1", *KEEP).json
    old, new = kept["rows"]["serve"]
    assert kept["kept"] and new["verdict"] in ("same", "close") and new["figures"] == old["figures"]
    after = toy.state()
    text = after["envgen.yaml"].decode()
    assert text == before["envgen.yaml"].decode().replace("toyserver==1.0", "toyserver==1.1")
    changed = {path for path in after if after[path] != before.get(path)}
    assert set(after) == set(before) and {"envgen.yaml", "envgen.lock"} < changed
    toy.envgen("render", "--check")
    toy.envgen("lock", "--check")
    assert toy.runs() == "1.1" and toy.image("prod-before") == image and not toy.image("prod-candidate")
    again = toy.envgen("up", "serve", "--json").json
    assert again["already_running"]  # what was tried is what `up` would start
    assert "envgen upgrade --back" in toy.envgen("status").out

    docker("builder", "prune", "-af")
    toy.envgen("prune", "--yes")
    toy.envgen("upgrade", "--back")
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
    assert toy.envgen("up", "serve", "--json").json["already_running"]


@pytest.mark.parametrize(
    ("release", "code", "why"),
    [
        ("1.2", 1, "its answers are different"),
        ("1.3", 5, "this release does not start"),
        ("1.4", 1, "-50 %"),
        ("1.5", 5, "unrecognized arguments: --greeting"),
    ],
)
def test_left(toy: Toy, release: str, code: int, why: str) -> None:
    before, image = toy.state(), toy.image()
    left = toy.envgen("upgrade", f"toy=={release}", *KEEP, code=code)
    assert not left.json["kept"] and why in left.out + left.err
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
    assert not (toy.root / ".envgen/candidate/prod").exists()


STEPS = {  # what the command has printed when it is killed -> how often before
    "resolving in": 1,
    "32 questions": 1,
    "starting the candidate": 1,
    "32 questions, of the candidate": 2,
}


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("then", ["up", "again"])
def test_killed(toy: Toy, step: str, then: str) -> None:
    """Whatever step it was killed at: no file has changed, and either command goes on."""
    before, image = toy.state(), toy.image()
    for record in (toy.root / "results").glob("*"):
        if record.is_file():
            record.unlink()
    child = toy.start("upgrade", "toy==1.1", "--yes", "--keep")
    assert child.stderr
    marker, seen = step.partition(",")[0], 0
    for line in child.stderr:
        seen += marker in line
        if seen == STEPS[step]:
            break
    child.kill()
    child.communicate()
    assert seen == STEPS[step] and (toy.state(), toy.image()) == (before, image)
    if "candidate" in step:
        assert "envgen upgrade toy==1.1" in toy.envgen("status").out
    if then == "up":
        toy.envgen("up", "serve")
        assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
        assert "trial" not in toy.envgen("status").out
    else:
        toy.envgen("upgrade", "toy==1.1", *KEEP)
        assert toy.runs() == "1.1" and toy.image("prod-before") == image
        toy.envgen("upgrade", "--back")
        assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
