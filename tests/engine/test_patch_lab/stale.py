"""Builds FlashInfer's module `page` with FlashInfer's own JIT, and tells as JSON what came of it. Runs in the lab."""

import json
import sys
import time
from pathlib import Path

import flashinfer
from flashinfer.jit.page import gen_page_module

spec = gen_page_module()
started = time.time()
spec.build(verbose=False)
library = spec.get_library_path()
answer = {
    "version": flashinfer.__version__,
    "imported": str(Path(flashinfer.__file__).parent),
    "sources": sorted(
        {str(Path(word).parent) for word in spec.ninja_path.read_text().split() if word.endswith("page.cu")}
    ),
    "compiled": library.stat().st_mtime > started,
    "marked": sys.argv[1].encode() in library.read_bytes(),
}
print(json.dumps(answer))
