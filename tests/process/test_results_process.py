"""Records under real faults: writers that are killed, run side by side, or run out of room."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envgen.errors import ResultsError
from envgen.results import store
from envgen.results.shelf import scan

HISTORY = Path(__file__).parents[2] / "examples" / "history" / "gpt-oss-120b-gb10.yaml"
# Writes until it is stopped, or so many samples; says each sample's number once it is recorded.
WRITER = """\
import resource, sys
from pathlib import Path
from envgen.errors import EnvgenError
from envgen.results import store
folder, count, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if limit:
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with store.start(folder, "stress", {"profile": "cpu"}, {}) as run:
        for number in range(count):
            run.sample({"n": number, "text": "x" * (number % 97)})
            print(number, flush=True)
        run.end("passed", {"n": count})
except EnvgenError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def writer(folder: Path, count: int, limit: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, str(folder), str(count), str(limit)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def envgen(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "envgen", *argv], capture_output=True, text=True, check=False)


def test_a_kill_at_any_moment_keeps_every_sample_that_was_told(tmp_path: Path) -> None:
    chance = random.Random(5)
    for _ in range(6):
        with writer(tmp_path, 10**9) as process:
            assert process.stdout is not None
            process.stdout.readline()  # the first sample is there
            assert [entry.outcome for entry in scan(tmp_path).entries][-1] == "running"
            time.sleep(chance.random() / 10)
            process.kill()
            told = 1 + len(process.stdout.read().splitlines())
        entry = scan(tmp_path).entries[-1]
        record = store.load(entry.path)
        assert (entry.outcome, record.outcome) == ("interrupted", "interrupted")
        numbers = [sample.data["n"] for sample in record.samples]
        assert numbers == list(range(len(numbers)))
        assert told <= len(numbers) <= told + 1
    assert len(scan(tmp_path).entries) == 6


def test_writers_side_by_side_never_mix(tmp_path: Path) -> None:
    processes = [writer(tmp_path, 300) for _ in range(4)]
    while any(process.poll() is None for process in processes):
        assert not [entry for entry in scan(tmp_path).entries if entry.outcome == "interrupted" or entry.damaged]
        for process in processes:
            assert process.stdout is not None
            process.stdout.read()  # to the end of this writer; the others go on meanwhile
    assert [process.wait() for process in processes] == [0] * 4
    for process in processes:
        process.communicate()
    records = [store.load(entry.path) for entry in scan(tmp_path).entries]
    assert [[sample.data["n"] for sample in record.samples] for record in records] == [list(range(300))] * 4


def test_no_more_room_is_one_sentence_and_keeps_the_samples(tmp_path: Path) -> None:
    # The system itself refuses to let the file grow: a short write, then an error, as on a full disk.
    process = writer(tmp_path, 10**6, 20_000)
    out, err = process.communicate(timeout=60)
    told = len(out.splitlines())
    (entry,) = scan(tmp_path).entries
    record = store.load(entry.path)
    assert process.returncode == 8
    assert err.splitlines()[0] == (
        f"there is no space left for the results; {told} samples of run {record.id} are kept in {record.path}"
    )
    assert "Traceback" not in err
    assert (len(record.samples), record.torn, record.outcome) == (told, False, "interrupted")
    assert entry.path.stat().st_size <= 20_000


def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    for folder in (Path("/proc/results"), Path("/dev/null/results")):  # not even root may
        with pytest.raises(ResultsError) as caught:
            store.start(folder, "bench", {}, {})
        assert str(caught.value).startswith(f"can't write results into {folder}: ")
    done = envgen("results", "import", str(HISTORY), "--folder", "/proc/results")
    assert (done.returncode, done.stdout) == (8, "")
    assert done.stderr.startswith("envgen: can't write results into /proc/results: ")


def test_two_thousand_runs_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    environment = {"profile": "dev", "env": {f"VARIABLE_{n}": "x" * 20 for n in range(40)}}
    with store.start(folder, "bench", environment, {}) as run:
        run.sample({"decode_tps": 30.0, "gaps_ms": [17.1] * 100})
        run.end("passed", {"decode_tps": 0})
    text = run.path.read_text(encoding="utf-8")
    for number in range(1, 2000):
        copy = text.replace(run.id, f"{number:08x}").replace('"decode_tps":0', f'"decode_tps":{number}')
        (folder / f"29990101T00{number:06d}Z-bench-{number:08x}.jsonl").write_text(copy, encoding="utf-8")
    done = envgen("results", "list", "--json", "--folder", str(folder))
    assert done.returncode == 0
    runs = json.loads(done.stdout)["runs"]
    assert [run["summary"]["decode_tps"] for run in runs] == list(range(2000))
