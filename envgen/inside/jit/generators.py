"""FlashInfer's generators: the Python files that write a module's sources and build.ninja.

ninja knows nothing of them, and FlashInfer up to 0.6.10 writes build.ninja only where it is
missing. So a library can be older than a generator that would compile it with other flags or from
other sources.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from envgen.inside.common import read_text

FOLDER = "jit"  # of the package; releases up to 0.5 have some generators beside it
_CALL = "gen_jit_spec"  # each generator calls it
_LARGEST = 4 << 20
_MOST = 5000  # files of a package; 0.7 has some 600
# The beginning of a text in the file, f-strings included: f"batch_decode_with_kv_cache_{...}".
_TEXT = re.compile(r"""["']([A-Za-z][A-Za-z0-9_]{3,})""")


def generators(root: str) -> list[str]:
    """All generators of the package in ``root``, by path."""
    if not root:
        return []
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("data", "__pycache__"))
        for name in sorted(name for name in names if name.endswith(".py")):
            path = f"{folder}/{name}"
            inside = folder == f"{root}/{FOLDER}" or folder.startswith(f"{root}/{FOLDER}" + os.sep)
            if inside or _CALL in read_text(path, _LARGEST):
                paths.append(path)
            if len(paths) >= _MOST:
                return paths
    return paths


@dataclass(frozen=True)
class GeneratorTexts:
    """What a generator's file calls modules: whole names, and beginnings of names."""

    names: frozenset[str]
    heads: tuple[str, ...]

    def have(self, name: str) -> bool:
        """Whether they name the module ``name``."""
        return name in self.names or name.startswith(self.heads)


def texts_of(path: str) -> GeneratorTexts:
    texts = frozenset(_TEXT.findall(read_text(path, _LARGEST)))
    heads = (text if text.endswith("_") else f"{text}_" for text in texts)
    return GeneratorTexts(texts, tuple(heads))
