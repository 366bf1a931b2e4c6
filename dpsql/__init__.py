"""SQL-first differential privacy for Spark Structured Streaming.

>>> import dpsql                                            # doctest: +SKIP
>>> dpsql.query("SELECT WITH DIFFERENTIAL_PRIVACY ...", frame, unit="user_id", time="ts", secret="secret")   # doctest: +SKIP

Or with sources that are declared once, for streams that go on:

>>> sources = dpsql.load_sources("conf/sources.yaml")       # doctest: +SKIP
>>> query = dpsql.compile(open("conf/queries/demo.sql").read(), sources)   # doctest: +SKIP
>>> print(query.explain())                                  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

    from dpsql.compiled import Query
    from dpsql.compiled import compile_query as compile  # noqa: F401
    from dpsql.frame_query import Answer
    from dpsql.frame_session import Session, query, session
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret
    from dpsql.published.sketches import PublishedSketch
    from dpsql.sources.config import Source, Sources, load_sources
    from dpsql.streaming.handle import Handle
    from dpsql.tuning import Tuned, tune
    from dpsql.view import charts  # noqa: F401
    from dpsql.view.plain_table import OpenedTable

__all__ = [
    "Answer",
    "Ledger",
    "Query",
    "Secret",
    "Session",
    "Source",
    "Sources",
    "Tuned",
    "__version__",
    "ask",
    "latest",
    "load_sources",
    "query",
    "run_local",
    "session",
    "sketch",
    "start",
    "tune",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Load what is in modules of its own when it is first asked for, so that `import dpsql` costs
    nothing."""
    if name in ("Query", "compile"):
        from dpsql import compiled

        exports = {"Query": compiled.Query, "compile": compiled.compile_query}
    elif name in ("Source", "Sources", "load_sources"):
        from dpsql.sources import config

        exports = {
            "Source": config.Source,
            "Sources": config.Sources,
            "load_sources": config.load_sources,
        }
    elif name == "Answer":
        from dpsql import frame_query

        exports = {name: frame_query.Answer}
    elif name in ("Session", "query", "session"):
        from dpsql import frame_session

        exports = {
            "Session": frame_session.Session,
            "query": frame_session.query,
            "session": frame_session.session,
        }
    elif name == "__version__":
        from importlib.metadata import version

        exports = {name: version("dpsql")}
    elif name in ("Tuned", "tune"):
        from dpsql import tuning

        exports = {"Tuned": tuning.Tuned, "tune": tuning.tune}
    elif name == "charts":
        from dpsql.view import charts

        exports = {name: charts}
    elif name == "Ledger":
        from dpsql.privacy import ledger

        exports = {name: ledger.Ledger}
    elif name == "Secret":
        from dpsql.privacy import secret

        exports = {name: secret.Secret}
    else:
        raise AttributeError(f"module 'dpsql' has no attribute {name!r}")
    globals().update(exports)
    return exports[name]


def run_local(
    query: Query, frame: pd.DataFrame, secret: Secret, run_id: str | None = None, **options: Any
) -> pd.DataFrame:
    """Run a query over a frame on the local engine, without Spark. Each run writes a ledger line.

    Args:
        query: from `dpsql.compile`.
        frame: the stream's records, columns as the source declares them.
        secret: from `dpsql.Secret.load`.
        run_id: 32 hexadecimal digits; a fresh one, and so fresh noise, unless given. One run id sees one input: others are refused.
        options: see `dpsql.local.feeder.run_local`.

    Returns:
        The private histogram: `window_start, window_end, trigger, trigger_time`, keys, aggregates and their stderr.
    """
    from dpsql.local.feeder import run_local as run

    return run(query, frame, secret, run_id, **options)


def start(
    spark: SparkSession,
    query: Query,
    lake: str,
    name: str,
    secret: Secret,
    ledger: Ledger,
    **options: Any,
) -> Handle:
    """Start a query on Spark in a thread of this process: live, unless `until_caught_up=True`.

    Args:
        spark: any session with Delta and `spark.authenticate` (docs/deployment.md): yours, or one from `dpsql.streaming.session.session`.
        query: from `dpsql.compile`.
        lake: the lake's folder.
        name: the query's name in the lake.
        secret: from `dpsql.Secret.load`.
        ledger: from `dpsql.Ledger.beside`; a new run writes its line there.
        options: see `dpsql.streaming.job.run`.

    Returns:
        A handle: `wait`, `stop`, `progress`, `running`.
    """
    from dpsql.lake.runs import Lake
    from dpsql.streaming.handle import Handle

    return Handle(
        spark, query, Lake(lake), name, secret, ledger, {"until_caught_up": False, **options}
    )


def sketch(
    lake: str, name: str, window: str | None = None, alias: str | None = None
) -> PublishedSketch:
    """Return a published sketch, from the public part of a lake alone: `.estimate(values)`, `.top(candidates, k)`, `.noise_sd`.

    Args:
        lake: the lake's folder.
        name: the query's name in the lake.
        window: when the window starts, like `2026-01-31` or `2026-01-31T12:00:00` (UTC); the newest finished one unless given.
        alias: which sketch of the query; the first unless given.
    """
    from dpsql.lake.runs import Lake
    from dpsql.published.sketches import open_sketch
    from dpsql.times import microseconds

    return open_sketch(
        Lake(lake), name, None if window is None else microseconds(window), alias=alias
    )


def ask(
    lake: str,
    name: str,
    sql: str,
    *,
    max_error: float | str | None = None,
    pay: bool = False,
    secret: Secret | None = None,
) -> pd.DataFrame:
    """Answer a question about the published tables of a CUBE, from the public part of a lake alone, for no budget.

    Args:
        lake: the lake's folder.
        name: the query's name in the lake.
        sql, max_error: as of `Answer.ask`.
        pay: where the tables are not exact enough, pay from what the run keeps for that (`session_share` of its source).
        secret: of the run; needed to pay.
    """
    import pandas  # slow to import

    from dpsql.lake.runs import Lake
    from dpsql.published.cubes import open_marginals
    from dpsql.published.paid import answer_or_price, paid_frame

    if pay:
        return paid_frame(Lake(lake), name, sql, max_error, secret)
    limit = None if max_error is None else str(max_error)
    marginals = open_marginals(Lake(lake), name)
    return pandas.DataFrame(answer_or_price(Lake(lake), name, marginals, sql, limit).rows)


def open(path: str) -> OpenedTable:  # `dpsql.open`: nobody imports it by itself
    """Return a published table by itself, wherever it is: nothing but its folder is read.

    Args:
        path: of the Delta table, like `lake/public/demo`.

    Returns:
        The newest release of every window, shown with its errors: `.rows` is the DataFrame; `.explain()` says who is protected, at which
        epsilon, and what each column is.
    """
    from dpsql.published.public_rows import newest, open_table
    from dpsql.published.reader_frames import reader_frame
    from dpsql.view.plain_table import OpenedTable
    from dpsql.view.reading import as_read

    return OpenedTable(reader_frame(as_read(newest(open_table(path), path))).reset_index(drop=True))


def latest(lake: str, name: str) -> pd.DataFrame:
    """Return the newest release of every window that a query has published, read without Spark: in its order, if the query says one."""
    from dpsql.lake.runs import Lake
    from dpsql.published.public_rows import newest, own_reading
    from dpsql.published.reader_frames import reader_frame
    from dpsql.view.reading import as_read

    rows = as_read(newest(Lake(lake), name), own_reading(Lake(lake), name))
    return reader_frame(rows).reset_index(drop=True)
