from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no history of this repository, which can be slow."""
    monkeypatch.chdir(tmp_path)
