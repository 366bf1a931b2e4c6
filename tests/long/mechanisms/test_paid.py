"""Paid answers under many asks at once: four processes, of which some are killed."""

from __future__ import annotations

from pathlib import Path

from tests.mechanisms.marginals.test_paid import asks_of_processes, check_log


def test_2000_asks_of_four_processes_and_12_kills_never_spend_more(tmp_path: Path) -> None:
    """Catches: a budget that is looked at before others have paid; a price that goes with the process that was killed."""
    session = asks_of_processes(tmp_path / "log", 4, 2000, 12, 20.0)
    assert len(check_log(session)) > 40
