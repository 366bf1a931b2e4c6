"""A lake with half a day of the demo's edits, and a key that would like to run a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import dpsql
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from tests.described import write
from tests.sql.golden import accepted_text

CHECKOUT = Path(__file__).resolve().parents[2]
NOON = pd.Timestamp("2015-09-12T12:00", tz="UTC")
EVIL = "<script>document.title='owned'</script>\x1b[31m$x^2$ \"'&"


@dataclass(frozen=True)
class Published:
    """A lake, where its ledger is, and the rows that are in it."""

    lake: str
    secret: Path
    rows: pd.DataFrame

    def more(self, rows: pd.DataFrame) -> None:
        """Publish further rows."""
        write_deltalake(
            Lake(self.lake).histogram("demo"),
            pa.Table.from_pandas(rows, preserve_index=False),
            mode="append",
        )


@pytest.fixture(scope="session")
def half_a_day(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    query = dpsql.compile(
        accepted_text("people_rows_and_sum"), dpsql.load_sources(CHECKOUT / "conf/sources.yaml")
    )
    secret = Secret.load(tmp_path_factory.mktemp("keys") / "keys" / "secret")
    records = pd.read_parquet(CHECKOUT / "conf/demo/wiki", filters=[("ts", "<", NOON)])
    rows = dpsql.run_local(query, records, secret)
    rows = rows[(rows["window_start"] == rows["window_start"].min()) & (rows["trigger"] <= 12)]
    strange = rows[rows["trigger"] == 12].iloc[[0, 0]].assign(channel=[EVIL, None])
    return pd.concat([rows, strange], ignore_index=True)


@pytest.fixture
def published(half_a_day: pd.DataFrame, tmp_path: Path) -> Published:
    """Half a day in a new lake, with a run and a ledger line."""
    query = dpsql.compile(
        accepted_text("people_rows_and_sum"), dpsql.load_sources(CHECKOUT / "conf/sources.yaml")
    )
    path = tmp_path / "keys" / "secret"
    lake = str(tmp_path / "lake")
    open_run(Lake(lake), "demo", query, Secret.load(path), Ledger.beside(path), query.source)
    write(Lake(lake).histogram("demo"), half_a_day, query.published)
    return Published(lake, path, half_a_day)
