"""What FlashInfer compiles before a server answers: when it is said, and which variant compiles less."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.inside.predict.compiles import large_module
from envgen.predict.compiling import Compiling, by_words, compiles_less
from envgen.predict.gpus import target
from envgen.profile.load import load_project
from envgen.text import GIB

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("module", "objects", "cores", "memory", "shown"),
    [
        ("fused_moe_120", 96, 20, 30, "96 objects, some 13 minutes on 20 cores with 30 GiB"),
        ("fused_moe_120", 96, 20, 120, "96 objects, some 6 minutes on 20 cores with 120 GiB"),  # the longest object's
        ("fused_moe_90", 248, 8, 1000, "248 objects, some 2.8 hours on 8 cores with 1000 GiB"),
        ("fused_moe_120", 96, 20, -3, "some 88 minutes on 20 cores with 0 GiB"),
        ("fused_moe_100", 10, 20, 400, ""),
    ],
)
def test_a_line_where_it_takes_more_than_minutes(
    module: str, objects: int, cores: int, memory: int, shown: str
) -> None:
    line = Compiling(module, objects).line(cores, memory * GIB)
    assert shown in line and bool(line) == bool(shown)


@pytest.mark.parametrize(
    ("profile", "variant", "module", "less"),
    [
        ("dev", "", "fused_moe_120", "`--variant prod` compiles less"),
        ("source_dev", "", "fused_moe_120", "`--variant prod` compiles less"),
        ("dev", "prod", "", ""),
        ("prod", "", "", ""),
        ("prod", "native", "fused_moe_120", "without `--variant native` it compiles less"),
    ],
)
def test_before_a_release_can_be_asked_its_flags_tell(profile: str, variant: str, module: str, less: str) -> None:
    project = load_project(file=TOP / "envgen.yaml", environ={}, local=False, profile=profile, variant=variant).project
    chosen = project.profiles[profile]
    found = by_words(chosen.services["serve"], target(chosen))
    assert (found.module if found else "") == module
    if found:
        assert found.line(20, 30 * GIB).startswith(
            "FlashInfer compiles fused_moe_120 before the first answer: about 96"
        )
        assert compiles_less(chosen, "serve") == less


def test_without_flashinfer_nothing_is_said() -> None:
    report = {"asked": {"moe": {"backend": "FLASHINFER_CUTLASS_MXFP4_MXFP8"}}, "platform": {"capability": [12, 1]}}
    assert large_module(report) is None
    assert large_module({**report, "asked": {"moe": {"backend": "MARLIN"}}}) is None
