"""Files of a container, a checkout or a cache, as the programs in the container read them: they are a stranger's."""

from __future__ import annotations

import os
from pathlib import Path

from envgen.inside.common import read_bytes


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe-link").symlink_to("pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(str(tmp_path / "file"), 3) == b"123"
    for name in ("pipe", "pipe-link", "absent", "", "null\0"):
        assert read_bytes(str(tmp_path / name)) == b""
    assert read_bytes("/dev/zero") == b""
    assert read_bytes("/proc/self/stat").startswith(b"%d " % os.getpid())
