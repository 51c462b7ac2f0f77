"""Which of a service's VLLM_... variables the release reads: by its own list, and by what its selectors asked for."""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any, Callable, Dict, List, Set

from envgen.inside.common import read_text

Doc = Dict[str, Any]
LAYERS = os.path.join("model_executor", "layers") + os.sep  # where kernels are chosen
MOST = 4  # modules that are named
LARGEST = 2 << 20  # bytes of a module


class Variables:
    """The variables ``names`` of a service. Made before the release is asked anything, to see what it reads."""

    def __init__(self, names: List[str]) -> None:
        self.names = [name for name in names if name.startswith("VLLM_")]
        self.read: Set[str] = set()

    def watch(self) -> None:
        """Note each of them that the release asks for from now on: it reads all through one dictionary."""
        known = self._known()
        for name in self.names:
            if name in known:
                known[name] = self._noting(name, known[name])

    def _noting(self, name: str, reads: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            self.read.add(name)
            return reads()

        return noted

    def _known(self) -> Dict[str, Callable[[], Any]]:
        known = getattr(sys.modules.get("vllm.envs"), "environment_variables", None)
        return known if isinstance(known, dict) else {}

    def answer(self, package: str) -> List[Doc]:
        """Each that the release does not read: its ``name``, a similar one of the release, and the modules that read it
        where others than those were asked. [] where the release has no list."""
        known, found = self._known(), []
        if not known:
            return []
        suspects = [name for name in self.names if name not in self.read]
        readers = readers_of(package, suspects)
        for name in suspects:
            places = readers[name]
            if name not in known and not places:
                near = difflib.get_close_matches(name, list(known), 1, 0.93)
                found.append({"name": name, "near": near[0] if near else "", "readers": []})
            elif name in known and not places:
                found.append({"name": name, "near": "", "readers": []})
            elif all(place.startswith(LAYERS) for place in places):
                # Only modules that choose kernels read it, and those that were asked did not.
                found.append({"name": name, "near": "", "readers": places[:MOST]})
        return found


def readers_of(package: str, names: List[str]) -> Dict[str, List[str]]:
    """Variable -> the modules of the package that name it, besides the list itself."""
    found: Dict[str, List[str]] = {name: [] for name in names}
    for folder, _, files in sorted(os.walk(package) if names else ()):
        for file in sorted(files):
            place = os.path.relpath(os.path.join(folder, file), package)
            if not file.endswith(".py") or place == "envs.py":
                continue
            text = read_text(os.path.join(folder, file), LARGEST)
            for name in names:
                if name in text:
                    found[name].append(place)
    return found
