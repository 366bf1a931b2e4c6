"""`dpsql.start` in a session that the caller has started, live, until a line comes in.

python -m tests.deployment.adopted_run FOLDER QUERY SOURCES JARS [open]

With `open` the session has no protection and the product's check is taken out: what the tests then find shows that they can find it.
"""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main(folder: Path, query: str, sources: str, jars: str, exposed: bool) -> None:
    import dpsql
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret
    from dpsql.streaming import session
    from tests.deployment.unprotected_run import take_out

    os.umask(0o022)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if exposed:
        take_out()
    settings = {
        **session.SESSION,
        "spark.jars": jars,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "tmp"),
    }
    settings["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
    settings["spark.cleaner.referenceTracking"] = (
        "false"  # blocks stay, so that whoever asks later is served, too
    )
    builder = SparkSession.builder.master("local[1]").appName("mine")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    asked = dpsql.compile(Path(query).read_text(), dpsql.load_sources(sources))
    secret = Secret.load(folder / "secret" / "secret")
    handle = dpsql.start(
        spark,
        asked,
        str(folder / "lake"),
        "adopted",
        secret,
        Ledger.beside(folder / "secret" / "secret"),
        buckets=(1, 1),
    )
    published = folder / "lake" / "public" / "adopted"
    while handle.running and not list(published.glob("*.parquet")):
        time.sleep(0.1)
    print("ready" if handle.running else handle.wait(), flush=True)
    sys.stdin.readline()
    handle.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], exposed=sys.argv[5:] == ["open"])
