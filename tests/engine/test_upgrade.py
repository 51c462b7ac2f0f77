"""`envgen upgrade`, its way back, and kills at each step, on a real engine with an index of small packages."""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from projects import Project, docker
from toy_index import RELEASES, index, toy_project, wheel, write_index

from envgen.app.upgrade import journal

pytestmark = pytest.mark.engine

NAME = "envgentestupgrade"
WITH_DEV = """\
default_profile: prod
profiles:
  dev: {extends: prod, mode: development, sources: {toy: {origin: {checkout: ../toy}}}}
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
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the index."""
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
def toy(make_project: Callable[..., Project], top: Path) -> Iterator[Toy]:
    with toy_project(make_project, NAME, top) as made:
        toy = Toy(made.root, made.name)
        toy.envgen("lock")
        toy.envgen("render")
        toy.envgen("up", "serve", "--yes")
        yield toy


def test_nothing_and_something_newer(toy: Toy, top: Path) -> None:
    found = toy.envgen("upgrade", "--json", code=1).json
    assert {"name": "toyserver", "before": "1.0", "after": "3.0"} in found["newer"]
    write_index(top, [one for one in RELEASES if one[:2] != ("toyserver", "3.0") and one[1] in ("0.0.1", "1.0")])
    nothing = toy.envgen("upgrade")
    write_index(top)
    assert "everything is the newest that fits" in nothing.out


def test_on_paper_nothing_changes(toy: Toy) -> None:
    before, image, file = toy.state(), toy.image(), toy.root / "envgen.yaml"
    file.write_text(file.read_text().replace("profiles:\n", WITH_DEV))
    refused = toy.envgen("upgrade", "toy==1.1", code=6)
    file.write_bytes(before["envgen.yaml"])
    assert "dev: git -C ../toy checkout v1.1" in refused.err
    assert "toyserver" in refused.err and "1.0" in refused.err and "--yes" in refused.err
    assert "one start" in refused.err
    gone = toy.envgen("upgrade", "toy==1.5", *KEEP, code=6)
    assert "services.serve.args.greeting: unrecognized" in gone.err and "change it in envgen.yaml" in gone.err
    assert "toyserver==9" in toy.envgen("upgrade", "toy==9", "--yes", code=7).err
    assert "unknown input" in toy.envgen("upgrade", "nothing", "--yes", code=2).err
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")


def test_up_build_asks_once_and_refuses_before_it_builds(toy: Toy) -> None:
    """A changed version: lock, image and the server that runs are one question, at the beginning."""
    before, image, file = toy.state(), toy.image(), toy.root / "envgen.yaml"
    file.write_text(file.read_text().replace("toyserver==1.0", "toyserver==1.1"))
    changed = toy.state()
    try:
        file.write_text(file.read_text().replace("toyserver==1.1", "toyserver==1.5"))
        refused = toy.envgen("up", "serve", "--build", "--recreate", "--yes", code=6).err
        assert "nothing was built" in refused and "services.serve.args.greeting: unrecognized" in refused, refused
        assert (toy.image(), toy.runs()) == (image, "1.0")
        for path, content in changed.items():
            (toy.root / path).write_bytes(content)
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
@pytest.mark.parametrize("heading", ["A nightly, or a fork's index", "A wheel by address"])
def test_a_nightly_as_the_page_says(toy: Toy, heading: str, tmp_path: Path) -> None:
    """The page's blocks, with a package of these tests in place of vLLM."""
    page = (Path(__file__).parents[2] / "docs/updates.md").read_text("utf-8")
    section = page.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    (settings,) = re.findall(r"```yaml title.*?\n(.*?)```", section, re.DOTALL)
    commands = re.findall(r"^\$ envgen (.*?)(?: +#.*)?$", section, re.MULTILINE)
    release = yaml.safe_load(settings)["profiles"]["prod"]["sources"]["vllm"]["origin"]["wheel"].partition("==")[2]
    (old,) = (one for one in RELEASES if one[:2] == ("toyserver", "1.0"))
    nightly = ("toyserver", release, old[2], old[3].replace('"toyserver 1.0', f'"toyserver {release}'))
    before, file = toy.state(), toy.root / "envgen.yaml"
    text = file.read_text().replace("toyserver==1.0", f"toyserver=={release}")
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    (toy.root / "wheels").mkdir()
    wheel(toy.root / "wheels", *nightly)
    with index(tmp_path, gateway, [nightly]) as address:
        if "wheelhouse" in settings:
            text = text.replace("    pip:", "    build: {wheelhouse: wheels}\n    pip:")
        else:  # beside the one that the profile has
            text = text.replace("extra_indexes: [", f'extra_indexes: ["{address}", ')
        file.write_text(text)
        try:
            code, shown = toy.on_a_terminal(b"y\n", *commands[0].split())
            assert (code, toy.runs()) == (0, release), shown
            for command in commands[1:]:
                toy.envgen(*command.split(), "--yes")
                assert toy.runs() == "1.0"
        finally:
            shutil.rmtree(toy.root / "wheels")
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
    file.write_text(text.replace("    targets:\n", source + "    targets:\n"))
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
        assert left.json["changes"] == [{"name": "toyspeed", "before": "1.0", "after": "2.0"}]
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
    assert kept["pages"] == [(toy.root / "results" / "index.html").as_uri()]
    assert "prod, serve: results" in (toy.root / "results" / "index.html").read_text(encoding="utf-8")
    old, new = kept["rows"]["serve"]
    assert kept["kept"] and new["verdict"] in ("same", "close")
    assert old["figures"].pop("memory GiB") > 0 and new["figures"].pop("memory GiB") > 0
    assert new["figures"] == old["figures"] and [gap["percent"] for gap in new["targets"]] == [25.0]
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
    ],
)
def test_left(toy: Toy, release: str, code: int, why: str) -> None:
    before, image = toy.state(), toy.image()
    left = toy.envgen("upgrade", f"toy=={release}", *KEEP, code=code)
    assert not left.json["kept"] and why in left.out + left.err
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
    assert not (toy.root / ".envgen/candidate/prod").exists()


KILLS = [  # what the command has printed when it ends, how often, by what, and what comes then
    ("resolving in", 1, signal.SIGKILL, "up"),
    ("load build definition", 1, signal.SIGKILL, "again"),
    ("32 questions", 1, signal.SIGKILL, "again"),
    ("starting the candidate", 1, signal.SIGKILL, "up"),
    ("starting the candidate", 1, signal.SIGHUP, "again"),
    ("32 questions", 2, signal.SIGINT, "up"),
    ("32 questions", 2, signal.SIGKILL, "again"),
]


def killed(toy: Toy, marker: str, count: int, by: int, *words: str) -> None:
    """End a command when it has printed the marker; what has no name on the engine goes then, too."""
    child, printed = toy.start(*words), 0
    assert child.stderr
    for line in child.stderr:
        printed += marker in line
        if printed == count:
            break
    child.send_signal(by)
    child.communicate()
    assert printed == count
    docker("image", "prune", "-f")
    toy.envgen("prune", "--yes")


@pytest.mark.nightly
@pytest.mark.parametrize(("marker", "count", "by", "then"), KILLS)
def test_killed(toy: Toy, marker: str, count: int, by: int, then: str) -> None:
    """Whatever step it was killed at: no file has changed, and either command goes on."""
    docker("rmi", "-f", f"{NAME}:prod-before", check=False)
    docker("image", "prune", "-f")  # an image of 1.1 from another test would be found, and nothing built
    before, image, earlier = toy.state(), toy.image(), toy.image("prod-before")
    for record in (toy.root / "results").glob("*"):
        if record.is_file():
            record.unlink()
    killed(toy, marker, count, by, "upgrade", "toy==1.1", "--yes", "--keep")
    assert toy.state() == before
    if "candidate" in marker or count == 2:
        assert "envgen upgrade toy==1.1" in toy.envgen("status").out
    if then == "up":
        toy.envgen("up", "serve")
        assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")
        assert toy.image("prod-before") == earlier and not toy.image("prod-aside")
        assert "trial" not in toy.envgen("status").out
    else:
        toy.envgen("upgrade", "toy==1.1", *KEEP)
        assert toy.runs() == "1.1" and toy.image("prod-before") == image
        toy.envgen("upgrade", "--back")
        assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")


@pytest.mark.nightly
def test_killed_while_it_is_kept_and_on_the_way_back(toy: Toy) -> None:
    before, image, file = toy.state(), toy.image(), toy.root / "envgen.yaml"
    child = toy.start("upgrade", "toy==1.1", *KEEP)
    while file.read_bytes() == before["envgen.yaml"]:
        assert child.poll() is None
    child.kill()
    child.communicate()
    docker("image", "prune", "-f")
    toy.envgen("up", "serve")
    assert toy.runs() == "1.1" and toy.image("prod-before") == image and not toy.image("prod-candidate")
    assert "trial" not in toy.envgen("status").out
    kept, new = toy.state(), toy.image()
    killed(toy, "starting the candidate", 1, signal.SIGKILL, "upgrade", "--back")
    toy.envgen("up", "serve")
    assert (toy.state(), toy.image(), toy.runs()) == (kept, new, "1.1")
    killed(toy, "starting the candidate", 1, signal.SIGKILL, "upgrade", "--back")
    toy.envgen("upgrade", "--back")
    assert (toy.state(), toy.image(), toy.runs()) == (before, image, "1.0")


@pytest.mark.nightly
@pytest.mark.parametrize("room", [60, 150, 170, 220, 400])
def test_a_disk_that_is_full_while_it_is_kept(tmp_path: Path, room: int) -> None:
    """A real one, which is full at the journal, at the first, second and third file, or not at all."""
    new = {"compose/prod.yaml": "n" * 4000, "envgen.lock": "n" * 40000, "envgen.yaml": "n" * 90000}
    old = dict.fromkeys(new, "old")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}k", "small", tmp_path], check=True)
    try:
        (tmp_path / "compose").mkdir()
        for name, text in old.items():
            (tmp_path / name).write_text(text)
        with contextlib.suppress(OSError):
            journal.write_together(tmp_path, "prod", new)
        with contextlib.suppress(OSError):  # what the next command does first
            journal.finish(tmp_path / "envgen.yaml")
        assert {name: (tmp_path / name).read_text() for name in old} in (old, new)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
