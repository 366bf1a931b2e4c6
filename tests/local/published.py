"""A run in a lake as the Spark engine leaves it, made here without Spark."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from dpsql.compiled import Query
from dpsql.description import LEFT_OUT_ENDING
from dpsql.lake.catch_up import CatchUp, finish
from dpsql.lake.engine_file import Engine, Part, write_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.runs import Lake, Run, neighbour
from dpsql.local.feeder import Feeder, published_table, recomputed_figures
from dpsql.local.record_reader import RowReader
from dpsql.mechanisms.protocol import RunFacts
from dpsql.privacy.secret import Secret
from dpsql.published.left_out import of_left_out
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import OPERATORS, Clock
from tests.described import write
from tests.local.conftest import HOUR

CatchUps = Sequence[tuple[Sequence[tuple[int, Sequence[int]]], int]]
"""The micro-batches of each with their files, and until when."""


def engine_of(private: Path) -> Engine:
    return Engine(private, (2, 3), {operator: Part() for operator in OPERATORS})


def publish(
    lake: Lake, run: Run, query: Query, secret: Secret, files: Sequence[Path], catch_ups: CatchUps
) -> Feeder:
    """Catch-ups over files; what they have read is counted by the feeder that is returned."""
    private = lake.private(run.name)
    secret = secret.of_ledger(run.ledger_id)
    reader = RowReader(query.plan, query.sources, secret.salt(run.run_id), {})
    feeder = Feeder(
        query.mechanism.stages(query.plan, RunFacts(None)),
        secret.noise_key(run.run_id, query.plan.identity),
        (2, 3),
    )
    admission, release = (
        Manifest(private / "files", run.run_id, operator, 1) for operator in OPERATORS
    )
    closed = NO_CLOCK
    released = []
    ticks = []
    log = ["v1"]
    private.mkdir(parents=True, exist_ok=True)
    if not (private / "run.json").exists():
        (private / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    write_engine(engine_of(private), {})
    admission.create()
    for batches, until in catch_ups:
        for batch, numbers in batches:
            clock = Clock(closed, until + (6 + batch) * HOUR)
            feeder.micro_batch(reader.batch_rows([files[n] for n in numbers]), clock)
            uris = [files[n].as_uri() for n in numbers]
            log += [
                json.dumps(
                    {
                        "path": uri,
                        "timestamp": files[n].stat().st_mtime_ns // 1_000_000,
                        "batchId": batch,
                    }
                )
                for uri, n in zip(uris, numbers, strict=True)
            ]
            admission.commit(batch, [], {"files": uris, "clock": asdict(clock)})
        due = feeder.tick(until)
        released += due
        ticks += [
            {
                "kind": 1,
                "batch": batches[-1][0],
                "closed_us": until,
                "window": 1 << 62,
                "bucket": bucket,
            }
            for bucket in range(3)
        ]
        release.commit(
            len(ticks) // 3 - 1,
            [],
            {"closed_us": until, "rows": sum(rows.num_rows for rows in due), "mark": len(ticks)},
        )
        closed = until
    write(
        lake.histogram(run.name),
        published_table(query.plan, released, reader.key_types),
        query.published,
    )
    figures = recomputed_figures(query.plan, released)
    if figures is not None:
        path = neighbour(lake.histogram(run.name), LEFT_OUT_ENDING)
        write(path, figures, of_left_out(query.published, query.shape.left_out))
    write_deltalake(
        str(private / "contributions"),
        pa.Table.from_pylist(
            [*ticks, {"kind": 0, "batch": 0, "closed_us": 0, "window": 0, "bucket": 0}]
        ),
    )
    (private / "checkpoints/admission/sources/0").mkdir(parents=True)
    (private / f"checkpoints/admission/sources/0/{len(files) - 1}").write_text("\n".join(log))
    (private / "checkpoints/release/commits").mkdir(parents=True)
    for batch in range(len(catch_ups)):
        (private / f"checkpoints/release/commits/{batch}").touch()
    finish(private, CatchUp(len(catch_ups), closed, closed, True, {}))
    return feeder
