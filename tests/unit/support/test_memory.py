import os
import tempfile
from pathlib import Path

import pytest

from tests.support import memory


def test_files_go_to_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(memory, "SHARED", tmp_path)
    monkeypatch.setattr(memory, "has_room", lambda _folder: True)
    (tmp_path / "calve-tests-0" / "of a run that ended").mkdir(parents=True)
    memory.keep_files_in_memory()
    (folder,) = tmp_path.iterdir()
    assert Path(tempfile.gettempdir()) == folder
    assert Path(os.environ["TMPDIR"]) == folder
    assert folder.stat().st_mode & 0o777 == 0o711
    memory.keep_files_in_memory()
    assert list(tmp_path.iterdir()) == [folder], "a process that this one started uses the same"


def test_files_stay_on_disk_where_memory_is_scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(memory, "SHARED", tmp_path)
    monkeypatch.setattr(memory, "ROOM", 1 << 60)
    memory.keep_files_in_memory()
    assert "TMPDIR" not in os.environ
    assert list(tmp_path.iterdir()) == []
    assert memory.available_memory() > 0 or not Path("/proc/meminfo").exists()


def test_a_folder_that_is_missing_has_no_room(tmp_path: Path) -> None:
    assert not memory.has_room(tmp_path / "missing")
