"""What doctor reads in the sources of real releases: no flag that envgen ships is called wrong there."""

from __future__ import annotations

from pathlib import Path

import pytest
from releases import FILES, PROFILES, SHIPPED, environment

from envgen.doctor import collect
from envgen.inside.probe import sources as probe_sources
from envgen.profile.load import load_project


def folder_of(version: str) -> Path:
    """The package's folder."""
    top = environment(version).parents[1]
    return next(path for path in (top / "src" / "vllm", *top.glob("lib/*/site-packages/vllm")) if path.is_dir())


@pytest.mark.parametrize(("name", "variant", "service"), SHIPPED)
def test_no_shipped_flag_is_called_unknown(name: str, variant: str, service: str) -> None:
    folder = str(folder_of(PROFILES[name]))
    profile = load_project(file=FILES[name], environ={}, local=False, profile=name, variant=variant).project.profiles[
        name
    ]
    flags = probe_sources.judged_flags(collect.flags(profile, service), folder)
    assert flags["count"] > 200 and not flags["unknown"]
