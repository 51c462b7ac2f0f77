"""Doctor on patched files: what the probe reads, and how it is judged."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_facts import Make, recording

from envgen.binding import ShapeError
from envgen.doctor.checks import packages
from envgen.doctor.model import PatchedFile, from_json
from envgen.inside.probe import facts


def test_the_probe_compares_with_the_notes_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "NOTES", str(tmp_path / "notes"))
    assert facts.patched_files({}, {}) == []
    (tmp_path / "notes").mkdir()
    (tmp_path / "a.py").write_text("new\n")
    digest = hashlib.sha256(b"new\n").hexdigest()
    lines = [f"{digest}  {tmp_path}/a.py", f"{digest}  {tmp_path}/gone.py", f"{'0' * 64}  {tmp_path}/a.py"]
    (tmp_path / "notes/vllm").write_text("\n".join(lines) + "\n")
    found = facts.patched_files({}, {})
    assert [file["state"] for file in found] == ["same", "missing", "changed"]
    assert {file["package"] for file in found} == {"vllm"}


def test_judgement(make: Make) -> None:
    context = make("hook")
    assert context.probe is not None
    assert packages.patched_files(context) == []
    same = PatchedFile("vllm", "/site/vllm/a.py", "same")
    good = replace(context, probe=replace(context.probe, patched=(same,)))
    (found,) = packages.patched_files(good)
    assert (found.severity.name, found.title) == ("OK", "1 patched file is as the patches left them: vllm")
    lost = replace(context, probe=replace(context.probe, patched=(same, replace(same, state="changed"))))
    (found,) = packages.patched_files(lost)
    assert found.severity.name == "WARNING"
    assert "1 of 2 patched files" in found.title
    assert found.seen == "/site/vllm/a.py changed"


def test_documents() -> None:
    document = recording("hook")
    assert from_json(document).patched == ()
    document["patched"] = [{"package": "vllm", "path": "/a", "state": "same"}]
    assert from_json(document).patched == (PatchedFile("vllm", "/a", "same"),)
    document["patched"] = [{"package": 3}]
    with pytest.raises(ShapeError):
        from_json(document)
