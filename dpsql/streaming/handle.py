"""A run at work in a thread of this process: what `dpsql.start` gives back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake, has_begun
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.schedule import polling_interval
from dpsql.sources.reachable import check_reachable
from dpsql.streaming.first_look import check_fits
from dpsql.streaming.job import LiveOptions, run
from dpsql.streaming.progress import Progress, Summary
from dpsql.streaming.session import adopt
from dpsql.times import now_us


class Handle:
    """A started run. It ends by itself when its stored input is released, or when `stop` is called; its errors are raised by `wait`."""

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        lake: Lake,
        name: str,
        secret: Secret,
        ledger: Ledger,
        options: dict[str, Any],
    ) -> None:
        _check_start(spark, query, lake, name, options)
        bound_run = open_run(lake, name, query, secret, ledger, query.source)
        self.name = name
        self.run_id = bound_run.run_id
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self._summary: Summary | None = None
        self._failure: BaseException | None = None

        def work() -> None:
            try:
                self._summary = run(
                    spark,
                    query,
                    bound_run,
                    lake,
                    secret,
                    ledger=ledger,
                    progress=self._keep_report,
                    stop=self._stop,
                    **options,
                )
            except BaseException as problem:
                self._failure = problem

        self._thread = threading.Thread(target=work, name=f"dpsql-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it is still at work."""
        return self._thread.is_alive()

    @property
    def progress(self) -> Progress | None:
        """The newest report; None before the first."""
        return self._progress

    def wait(self, seconds: float | None = None) -> Summary | None:
        """Wait for its end.

        Args:
            seconds: at most so long; None: for ever.

        Returns:
            What it did, or None if it is still at work.

        Raises:
            DpsqlError: what has ended it.
        """
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        return self._summary

    def stop(self) -> Summary:
        """End it after its micro-batch and wait for that.

        Raises:
            DpsqlError: what has ended it before.
        """
        self._stop.set()
        summary = self.wait()
        assert summary is not None
        return summary

    def _keep_report(self, report: Progress) -> None:
        self._progress = report


def _check_start(
    spark: SparkSession, query: Query, lake: Lake, name: str, options: Mapping[str, Any]
) -> None:
    """Refuse what does not fit together before anything is bound or spent."""
    adopt(spark)
    end_us = query.until_us(options.get("until_us"), "until_us")
    is_live = not options.get("until_caught_up")
    query.check_ends(not is_live)
    if is_live:
        live = options.get("live") or LiveOptions()
        polling_interval(query.shape.schedule, live.interval_us)
    names = (query.parsed.stream, *query.parsed.static_sources)
    check_reachable([query.sources[each] for each in names], as_here=False)
    if not has_begun(lake, name):
        query.shape.schedule.check_behind(
            now_us() if end_us is None else end_us, query.source.start_us
        )
        check_fits(spark, query, is_live=is_live)


__all__ = ["Handle"]
