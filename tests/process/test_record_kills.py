"""`bench` killed between its steps: a record is there whole, as an unfinished one, or not at all."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from envgen.bench import record

KILLS = int(os.environ.get("ENVGEN_EXAMPLES", "10"))
WRITER = """\
import itertools, sys
from pathlib import Path
from envgen.bench import record
print("begin", flush=True)
for number in itertools.count():
    with record.start(Path(sys.argv[1]), "bench", {}, {"n": number}) as run:
        run.sample({"latency_ms": 1.0})
        run.end("passed", {})
"""


def test_a_kill_while_a_record_begins_or_ends(tmp_path: Path) -> None:
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begin\n"
            time.sleep(random.uniform(0, 0.03))
            process.kill()
        for left in tmp_path.glob(".envgen-*.tmp"):
            left.unlink()
        assert {record.load(path).outcome for path in tmp_path.iterdir()} <= {"passed", "unfinished"}
