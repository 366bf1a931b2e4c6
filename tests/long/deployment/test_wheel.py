"""The wheel runs Spark."""

from pathlib import Path

from tests.unit.test_wheel import CHECKOUT, dp, installed

__all__ = ["installed"]


def test_a_wheel_runs_spark(installed: Path, tmp_path: Path) -> None:
    """Its own settings and pinned jars, from the cache of the user: here a link to the checkout's, so that nothing is fetched again."""
    dp(installed, tmp_path, "init", "here")
    (tmp_path / "cache" / "dpsql").mkdir(parents=True)
    (tmp_path / "cache" / "dpsql" / "jars").symlink_to(CHECKOUT / ".jars")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "DPSQL_SECRET_FILE": str(tmp_path / "keys" / "secret"), "DPSQL_LAKE": "lake"}
    quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    words = (
        "here/conf/queries/demo.sql", "--sources", "here/conf/sources.yaml", "--until-caught-up", "--until", "2015-09-13", "--master",
        "local[2]",
    )  # fmt: skip
    done = dp(installed, tmp_path, "run", *words, **own, **quick)
    assert done.returncode == 0, done.stderr
    assert "#en.wikipedia" in dp(installed, tmp_path, "show", "demo", **own).stdout
    assert dp(installed, tmp_path, "view", "demo", **own).stdout == "wrote demo.html\n"
    assert (tmp_path / "demo.html").stat().st_size > 100_000
