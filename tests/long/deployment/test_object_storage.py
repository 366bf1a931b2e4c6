"""A run whose lake is in a bucket."""

from pathlib import Path

import pytest

from dpsql import jars
from dpsql.lake.runs import Lake, list_queries, read_run
from dpsql.published.public_rows import newest
from tests.deployment.commands import SMALL_SPARK, dpsql, environment
from tests.deployment.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from tests.deployment.test_object_storage import _credentials, store
from tests.deployment.workload import UNTIL, json_lines, visits, write_files, write_query

__all__ = ["_credentials", "store"]


@pytest.mark.jvm
def test_a_run_in_a_bucket_is_verified_and_goes_on(store: ObjectStore, tmp_path: Path) -> None:
    query, sources = write_query(tmp_path, write_files(tmp_path / "visits", json_lines(visits())))
    properties = tmp_path / "spark.conf"
    properties.write_text(
        SMALL_SPARK + "spark.jars " + ",".join(map(str, jars.ensure(jars.SPARK, jars.S3)))
    )
    env = environment(tmp_path, **store.environment)
    lake = ("--lake", "s3a://lake/one")
    flags = (
        *lake,
        "--sources",
        str(sources),
        "--properties-file",
        str(properties),
        "--buckets",
        "1",
        "--until-caught-up",
    )
    done = dpsql("run", str(query), *flags, "--until", UNTIL, "--master", "local[1]", env=env)
    assert done.returncode == 0, done.stderr
    verified = dpsql("verify", "visits", *lake, "--sources", str(sources), env=env)
    assert verified.stdout.startswith("identical: all "), verified.stderr
    one = Lake("s3a://lake/one")
    assert set(newest(one, "visits").frame["page"]) == {"p0", "p1", "p2"}
    assert [(listed.name, listed.state) for listed in list_queries(one)] == [
        ("visits", "published")
    ]
    assert read_run(one, "visits").name == "visits"
    # everything of the run is in the bucket, and the credentials are nowhere
    private = sorted(entry.name for entry in one.private("visits").iterdir())
    assert [*private] == [
        "catch_up.json", "checkpoints", "clock.json", "contributions", "engine.json", "files", "plan.json", "released",
        "run.json", "state", "status.json",
    ]  # fmt: skip
    assert ACCESS_KEY not in done.stdout + done.stderr
    assert SECRET_KEY not in done.stdout + done.stderr
