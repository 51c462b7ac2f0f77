"""Import truth and what pip knows, judged from recorded probes (data/README.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import CONTAINER, Make, recording

from envgen.doctor.checks import imports, packages, versions
from envgen.doctor.model import Finding, Severity
from envgen.doctor.programs import NAMES, Tried

PP = "/workspace/flashinfer"


def cases(findings: list[Finding]) -> list[str]:
    return [str(finding.evidence.get("case", finding.severity.word)) for finding in findings]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", ["trap", "missing"]),
        ("none-pythonpath-parent", ["trap", "trap"]),
        ("wheel", ["wheel"]),
        ("wheel-pythonpath", ["ok"]),
        ("hook", ["trap"]),
        ("hook-pythonpath", ["ok"]),
        ("compat", ["ok"]),
        ("leftovers", ["trap", "leftovers"]),
        ("leftovers-pythonpath", ["ok"]),
        ("two", ["ok"]),
        ("mixed", ["trap", "missing"]),
        ("hangs", ["failed"]),
    ],
)
def test_each_way_of_installing(make: Make, name: str, expected: list[str]) -> None:
    assert cases(imports.import_truth(make(name))) == expected


def test_the_trap_says_what_decided(make: Make) -> None:
    (found,) = imports.import_truth(make("hook"))
    assert found.title == "flashinfer: the namespace-package trap: an empty package is imported"
    assert found.seen == (
        "__file__ is None, __path__ = [/workspace/flashinfer]; with -c, -m in /workspace; "
        "decided by the current folder, which `-c` puts first on sys.path"
    )
    assert found.expected == "/workspace/flashinfer/flashinfer/__init__.py, the mounted checkout"


def test_the_cure_of_the_trap_depends_on_who_is_wrong(make: Make) -> None:
    def cure(**given: Any) -> tuple[str, bool]:
        remedy = imports.import_truth(make("hook", **given))[0].remedy
        assert remedy is not None
        return remedy.text, remedy.is_line

    assert cure() == (f"python_path: [{PP}]", True)  # the profile lacks the line
    assert cure(python_path=PP) == ("envgen up -p dev dev --recreate", False)  # the container is older than the profile
    assert cure(python_path=PP, digest="other") == ("envgen build -p dev", False)  # the image is


def test_wheel_and_missing(make: Make) -> None:
    (wheel,) = imports.import_truth(make("wheel"))
    assert (
        "with every way of starting Python, from every folder" not in wheel.seen
    )  # in the checkout itself it is right
    assert "the entry /venv/wheel/lib/python3.11/site-packages of sys.path" in wheel.seen
    missing = imports.import_truth(make("none"))[1]
    assert missing.seen.startswith("ModuleNotFoundError")


def test_leftovers_are_removed(make: Make) -> None:
    remedy = imports.import_truth(make("leftovers"))[1].remedy
    assert remedy is not None
    assert remedy.text == "envgen exec -p dev dev rm -r /venv/left/lib/python3.11/site-packages/flashinfer"


def change_cells(document: dict[str, Any], package: str, **values: Any) -> dict[str, Any]:
    for cell in document["imports"]:
        if cell["package"] == package:
            cell.update(values)
    return document


def test_production_wants_site_packages(make: Make) -> None:
    assert cases(imports.import_truth(make("prod-wheel", profile="prod"))) == ["ok", "missing"]  # no vllm there
    document = change_cells(
        recording("prod-wheel"), "flashinfer", origin="/workspace/flashinfer/flashinfer/__init__.py"
    )
    assert cases(imports.import_truth(make(document, profile="prod")))[0] == "from-mount"
    document = change_cells(recording("prod-wheel"), "flashinfer", origin="/x/flashinfer/__init__.py", entry="")
    assert cases(imports.import_truth(make(document, profile="prod")))[0] == "from-folder"
    document = change_cells(recording("prod-wheel"), "flashinfer", origin="/x/flashinfer/__init__.py", entry=None)
    assert cases(imports.import_truth(make(document, profile="prod")))[0] == "from-elsewhere"


def test_console_scripts(make: Make) -> None:
    assert [f.severity for f in packages.console_scripts(make("hook"))] == [Severity.OK]
    assert [f.severity for f in packages.console_scripts(make("none"))] == [Severity.WARNING]
    (mixed,) = packages.console_scripts(make("mixed"))
    assert "/venv/mixed/bin/flashinfer starts /venv/wheel/bin/python" in mixed.seen
    found = packages.console_scripts(make("prod-wheel", profile="prod"))
    assert [f.severity for f in found] == [Severity.OK, Severity.ERROR]  # a service needs `vllm`


def test_metadata(make: Make) -> None:
    assert [f.severity for f in packages.metadata(make("hook"))] == [Severity.OK]
    (moved,) = packages.metadata(make("moved", mount="/moved/flashinfer"))
    assert moved.seen == "editable, from /elsewhere/flashinfer"
    (two,) = packages.metadata(make("two"))
    assert two.title == "flashinfer-python is installed 2 times"
    assert two.remedy is not None
    assert two.remedy.text.endswith("flashinfer_python-0.5.2.dist-info")
    (raw,) = packages.metadata(make("raw", mount="/raw/flashinfer"))
    assert raw.title == "flashinfer-python has no metadata"


def test_a_wheel_beside_a_mounted_checkout(make: Make) -> None:
    """The code is the checkout's only as long as PYTHONPATH is."""
    (second,) = packages.metadata(make("wheel-pythonpath"))
    assert (second.case, second.severity) == ("second", Severity.ERROR)
    assert second.remedy is not None and second.remedy.text == "envgen exec -p dev dev envgen-install flashinfer"
    (alone,) = packages.metadata(make("wheel-pythonpath", is_temporary=True))  # nothing is installed there
    assert alone.severity is Severity.INFO


def test_another_version_than_the_profile_pins(make: Make) -> None:
    assert cases(packages.metadata(make("prod-wheel", profile="prod"))) == ["ok"]
    pin = "sources.flashinfer.origin.pypi=flashinfer-python==0.5.2"
    (other,) = packages.metadata(make("prod-wheel", profile="prod", sets=[pin]))
    assert other.title == "flashinfer-python 0.5.3 is installed, not flashinfer-python==0.5.2"
    assert other.remedy is not None and other.remedy.text == "envgen up -p prod serve --recreate"
    document = recording("prod-wheel")
    document["distributions"][0]["version"] = "0.5.3+cu130"  # a build may add that
    assert cases(packages.metadata(make(document, profile="prod"))) == ["ok"]


# --- one origin -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [f"{PP}/__init__.py", f"{PP}/build/lib/flashinfer/__init__.py"])
def test_another_file_of_the_checkout_is_not_the_package(make: Make, origin: str) -> None:
    """One cell of all is enough: `touch __init__.py` in the root is imported from the root's parent alone."""
    document = recording("hook-pythonpath")
    document["imports"][0].update(origin=origin, entry="")
    (found,) = imports.import_truth(make(document))
    assert (found.case, found.evidence["target"]) == ("other-file", origin)
    assert found.expected == f"{PP}/flashinfer/__init__.py, the mounted checkout"
    assert found.remedy is not None and found.remedy.text == f"envgen exec -p dev dev mv {origin} {origin}.off"


def test_an_ok_line_names_one_file(make: Make) -> None:
    (found,) = imports.import_truth(make("hook-pythonpath"))
    how = "imported in 2.0 s; found by 4 ways of starting Python in 4 folders"
    assert found.title == f"flashinfer is {PP}/flashinfer/__init__.py ({how})"
    (found, _) = imports.import_truth(make("prod-wheel", profile="prod"))
    assert found.title.startswith("flashinfer is /venv/wheel/lib/python3.11/site-packages/flashinfer/__init__.py (")


def test_a_layout_with_src(make: Make) -> None:
    document = change_cells(recording("hook-pythonpath"), "flashinfer", origin=f"{PP}/src/flashinfer/__init__.py")
    document["origins"][0]["home"] = f"{PP}/src/flashinfer/__init__.py"
    assert cases(imports.import_truth(make(document))) == ["ok"]


STASH = "git -C /home/me/flashinfer stash push -- flashinfer/__init__.py"


@pytest.mark.parametrize(
    ("tried", "case", "seen"),
    [
        (Tried(f"{PP}/flashinfer/__init__.py", lacks=NAMES["flashinfer"]), "incomplete", "without single_prefill"),
        (Tried(f"{PP}/flashinfer/__init__.py", lacks=NAMES["flashinfer"][:1]), "ok", ""),  # a release may drop a name
        (Tried(problem="SyntaxError: invalid syntax (__init__.py, line 3)"), "fails", "line 3"),
    ],
)
def test_an_emptied_or_broken_file_is_brought_back(make: Make, tried: Tried, case: str, seen: str) -> None:
    checkouts = {"flashinfer": "/home/me/flashinfer"}
    (found,) = imports.import_truth(make("hook-pythonpath", tried={"flashinfer": tried}, checkouts=checkouts))
    assert cases([found]) == [case] and seen in found.seen
    assert (found.remedy.text if found.remedy else STASH) == STASH


def test_a_wheel_is_the_file_of_its_record(make: Make) -> None:
    """Another copy in another site-packages is none of the distribution's."""
    other = "/usr/lib/python3/dist-packages/flashinfer/__init__.py"
    document = change_cells(recording("prod-wheel"), "flashinfer", origin=other, entry="/usr/lib/python3/dist-packages")
    document["python"]["path"].append("/usr/lib/python3/dist-packages")
    found = imports.import_truth(make(document, profile="prod"))[0]
    assert found.case == "from-elsewhere"
    assert found.expected.endswith("site-packages/flashinfer/__init__.py, as the RECORD of its wheel has it")


def test_what_put_an_entry_on_sys_path_is_named(make: Make) -> None:
    """A .pth file, sitecustomize, an editable install's hook, or a `python3` that is a script."""

    def found(document: dict[str, Any], **given: Any) -> tuple[str, str]:
        (one,) = imports.import_truth(make(document, python_path=PP, **given))
        assert one.remedy is not None
        return one.seen, one.remedy.text

    evil = {"origin": "/evil/flashinfer/__init__.py", "entry": "/evil"}
    document = change_cells(recording("hook-pythonpath"), "flashinfer", **evil)
    document["python"]["path"].insert(0, "/evil")
    document["starters"]["customize"] = {"sitecustomize": "/site/sitecustomize.py"}
    seen, cure = found(document)
    assert "the entry /evil of sys.path, which /site/sitecustomize.py adds" in seen
    assert cure == "envgen exec -p dev dev mv /site/sitecustomize.py /site/sitecustomize.py.off"
    document["pth"].append({"path": "/site/evil.pth", "lines": ["import sys; sys.path.insert(0, '/evil')"]})
    assert found(document)[1] == "envgen exec -p dev dev mv /site/evil.pth /site/evil.pth.off"
    document["pth"][-1]["lines"] = ["../evil"]
    assert found(document)[1] == "envgen exec -p dev dev mv /site/evil.pth /site/evil.pth.off"
    hook = "__editable___flashinfer_python_0_5_3_finder._EditableFinder"
    document = change_cells(recording("hook-pythonpath"), "flashinfer", **{**evil, "entry": None, "finder": hook})
    document["starters"]["hooks"] = {hook: "/site/__editable___flashinfer_python_0_5_3_finder.py"}
    assert found(document)[1] == "envgen exec -p dev dev envgen-install flashinfer"
    document = change_cells(recording("hook-pythonpath"), "flashinfer", **evil)
    document["environment"]["values"]["PYTHONPATH"] = "/evil"
    document["python"]["path"].insert(0, "/evil")
    document["starters"]["wrapper"] = "/other/python3"
    env = "services.dev.env={PATH: /other:/opt/envgen/bin:/bin, A: b}"
    seen, cure = found(document, sets=[env])
    assert "the entry /evil of PYTHONPATH, which /other/python3 sets" in seen
    assert cure == "services: {dev: {env: {A: 'b'}}}"


def test_pythonpath_of_the_image(make: Make) -> None:
    """The profile's entries come before the image's: the line that adds the mount is the fix."""
    evil = {"origin": "/evil/flashinfer/__init__.py", "entry": "/evil"}
    document = change_cells(recording("hook-pythonpath"), "flashinfer", **evil)
    document["environment"]["values"]["PYTHONPATH"] = "/evil"
    document["python"]["path"].insert(0, "/evil")
    container = replace(CONTAINER, env={"PYTHONPATH": "/evil"})
    (found,) = imports.import_truth(make(document, container=container))
    assert "decided by the entry /evil of PYTHONPATH" in found.seen
    assert found.remedy is not None and found.remedy.text == f"python_path: [{PP}]"


def test_a_folder_of_that_name_in_production(make: Make) -> None:
    """In the service's own folder another `working_dir` is enough; elsewhere the folder goes out of the way."""

    def cure(folder: str) -> str:
        document = recording("prod-wheel")
        deployment = next(cell for cell in document["imports"] if cell["package"] == "flashinfer")
        deployment.update(origin=f"{folder}/flashinfer/__init__.py", entry="", folder=folder)
        found = imports.import_truth(make(document, profile="prod"))[0]
        assert found.case == "from-folder" and found.remedy is not None
        return found.remedy.text

    assert cure("/workspace") == "working_dir: /"
    assert cure("/root") == "envgen exec -p prod serve mv /root/flashinfer /root/flashinfer.off"


# --- what pip knows ---------------------------------------------------------------------------------------------------


def test_packages_that_somebody_installed_cost_no_cache(make: Make) -> None:
    """In the image's site-packages a new container is enough; in the overlay, which outlives it, they are removed."""
    document = recording("prod-wheel")
    differ = {"name": "numpy", "promised": "2.3.5", "installed": "1.26.4", "location": "/usr/lib/python3/dist-packages"}
    document["locked"] = {"count": 2, "differ": [differ]}
    (found,) = versions.locked(make(document, profile="prod"))
    assert found.remedy is not None
    assert found.remedy.text == "envgen up -p prod serve --recreate"
    document = recording("hook")
    differ["location"] = "/opt/envgen/env/lib/python3.12/site-packages"
    document["protected"] = {"count": 2, "differ": [differ]}
    (found,) = versions.protected(make(document))
    assert found.remedy is not None
    assert found.remedy.text == "envgen exec -p dev dev pip uninstall -y numpy"


FILE = f"{PP}/flashinfer/__init__.py"


@pytest.mark.parametrize(
    ("tried", "severity", "case", "seen", "remedy"),
    [
        (Tried(FILE, "1", 2.0), "ok", "", "", ""),
        (Tried(problem="ModuleNotFoundError: No module named 'pynvml'"), "error", "fails", "pynvml",
         "sources: {flashinfer: {install: {dependencies: true}}}"),
        (Tried(problem="RuntimeError: boom"), "error", "fails", "boom",
         "envgen exec -p dev dev python3 -c 'import flashinfer'"),
        (Tried("/other.py"), "error", "gives-another", "/other.py",
         "envgen exec -p dev dev python3 -c 'import flashinfer; print(flashinfer)'"),
        (Tried(untried="3.1 GiB of memory are available"), "info", "", "3.1 GiB", ""),
        (None, "info", "", "no container", ""),
    ],
)  # fmt: skip
def test_it_is_ok_only_where_an_import_succeeds(
    make: Make, tried: Tried | None, severity: str, case: str, seen: str, remedy: str
) -> None:
    """The right file is found in all of them."""
    context = make("hook-pythonpath", tried={"flashinfer": tried} if tried else {})
    (found,) = imports.import_truth(context)
    assert (found.severity.word, found.case) == (severity, case) and seen in found.seen
    assert (found.remedy.text if found.remedy else "") == remedy
