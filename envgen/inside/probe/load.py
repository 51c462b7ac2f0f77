"""Runs INSIDE the container, before main.py, in the same namespace: the vocabularies loaded by who will load them.

The same rules: Python 3.8 and later, standard library only, evidence and no judgement. openai-harmony is imported in an
separate interpreter, with every proxy pointing at a closed port: what needs a network fails.
"""

# os.path instead of pathlib, and typing only for the type checker: importing both would cost every probe 8 ms.

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Doc = Dict[str, Any]

LOAD_LIMIT = 8.0  # seconds, for each vocabulary
NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once
# gpt-oss's encoding is the only one that openai-harmony has, and o200k_base is its vocabulary.
HARMONY = {"o200k_base": "HarmonyGptOss"}
LOADER_TEXT = """
import sys
try:
    import openai_harmony
except ImportError as error:
    print("no-harmony", error)
    sys.exit()
try:
    encoding = openai_harmony.load_harmony_encoding(sys.argv[1])
    print("loaded", len(encoding.encode("Hello, world", allowed_special="all")))
except BaseException as error:
    print("failed", type(error).__name__, " ".join(str(error).split())[:300])
"""


def load_one(name: str) -> Doc:
    import time

    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    before, began = dict(os.environ), time.time()
    for gone in ("NO_PROXY", "no_proxy"):
        os.environ.pop(gone, None)
    os.environ.update(proxies)
    try:
        argv = [sys.executable, "-c", LOADER_TEXT, HARMONY[name]]
        said, why = globals()["call"](argv, LOAD_LIMIT)
    finally:
        os.environ.clear()
        os.environ.update(before)
    words = (said.strip().splitlines() or [""])[-1].partition(" ")
    state = words[0] if words[0] in ("loaded", "no-harmony") and not why else "failed"
    last = why or ("" if state == "loaded" else words[2])
    return {"name": name, "state": state, "said": last, "seconds": round(time.time() - began, 2)}


def loads(request: Doc, _document: Doc) -> list[Doc]:
    """One real load of each vocabulary that openai-harmony knows; none unless asked for."""
    return [load_one(name) for name in request.get("load", []) if name in HARMONY]


globals().setdefault("FACTS", []).append(("loads", loads))
