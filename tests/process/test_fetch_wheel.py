"""scripts/fetch-wheel on a machine whose Python comes without pip, as a fresh Debian's does.

STAND-INS, since neither may really be installed here: `python3`, `apt-get` and `id` are small scripts on PATH.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch-wheel"
PYTHON = """\
#!/bin/sh
echo "python3 $*" >>"$LOG"
[ -e "$LOG.pip" ] || { echo "No module named pip" >&2; exit 1; }
while [ $# -gt 0 ]; do [ "$1" = -d ] && : >"$2/demo-1.0-py3-none-any.whl"; shift; done
exit 0
"""
APT = """\
#!/bin/sh
echo "apt-get $*" >>"$LOG"
case $* in *python3-pip*) : >"$LOG.pip" ;; esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    for name, text in {"python3": PYTHON, "apt-get": APT, "id": "#!/bin/sh\necho 0\n"}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "LOG": str(tmp_path / "log"), "HOME": str(tmp_path)}


def test_pip_is_installed_before_it_is_used(machine: dict[str, str], tmp_path: Path) -> None:
    command = [str(SCRIPT), "demo==1.0", str(tmp_path / "wheels")]
    subprocess.run(command, env=machine, capture_output=True, text=True, timeout=60, check=True)
    asked = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    words = [next((w for w in line if w in ("--version", "update", "python3-pip", "download")), "") for line in asked]
    assert words == ["--version", "update", "python3-pip", "download"]
    assert [path.name for path in (tmp_path / "wheels").glob("*")] == ["demo-1.0-py3-none-any.whl"]


def test_where_pip_is_nothing_is_installed(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "log.pip").touch()
    command = [str(SCRIPT), "demo==1.0", str(tmp_path / "wheels")]
    for _ in range(2):  # the second finds the wheel there, and asks nobody
        subprocess.run(command, env=machine, capture_output=True, text=True, timeout=60, check=True)
    log = (tmp_path / "log").read_text()
    assert "apt-get" not in log and log.count("download") == 1
