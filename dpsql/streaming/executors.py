"""Whether a cluster gives a run something to work with: Spark itself waits for executors for ever, and says nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpsql.errors import DpsqlError
from dpsql.streaming import internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 5.0
SAY_SECONDS = 30.0
END_SECONDS = 300.0
NONE = "this run has no executor: others have all cores or memory of the cluster (spark.cores.max), or its master has forgotten it"


@contextmanager
def watched(
    spark: SparkSession, stop: threading.Event, tell: Callable[[str], None]
) -> Iterator[None]:
    """Inside, a run on a cluster that has no executor says so, and is ended when it has had none for minutes.

    One that was told to stop ends at once: its micro-batch would wait. What then fails is no failure, and is not raised.

    Raises:
        DpsqlError: it was ended, but not told to stop; the same command goes on.
    """
    context = internals.java_context(spark)
    over = threading.Event()
    ended = threading.Event()
    broken_off = threading.Event()
    if str(context.master()).startswith("local"):
        yield
        return

    def watch() -> None:
        since = time.monotonic()
        told = False
        while not over.wait(LOOK_SECONDS):
            if not (ended.is_set() or broken_off.is_set()) and _served(context):
                since = time.monotonic()
                told = False
            elif broken_off.is_set() or (stop.is_set() and not ended.is_set()):
                broken_off.set()
                context.cancelAllJobs()
            elif time.monotonic() - since > END_SECONDS:
                ended.set()
                stop.set()
                context.cancelAllJobs()
            elif time.monotonic() - since > SAY_SECONDS and not told:
                told = True
                tell(f"{NONE}; it waits")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except DpsqlError as problem:
        if not broken_off.is_set() or type(problem) is not DpsqlError:
            raise
    finally:
        over.set()
        thread.join()
        if ended.is_set():
            raise DpsqlError(
                f"{NONE}, for {END_SECONDS / 60:.0f} minutes. What is published stays; the same command goes on from there"
            ) from None


def _served(context: Any) -> bool:
    """Whether it has an executor, or needs none: those of an idle run are taken away where they come and go."""
    if context.getExecutorMemoryStatus().size() > 1:  # the first is the driver
        return True
    return bool(context.getConf().getBoolean("spark.dynamicAllocation.enabled", False)) and not len(
        context.statusTracker().getActiveJobIds()
    )
