"""What a source's policy decides: what a query without an option has, and how much a query may ask for at most."""

from __future__ import annotations

from typing import Any

import pytest

from dpsql.compiled import Query, compile_query
from dpsql.errors import ConfigError, QueryError
from dpsql.sources.config import Sources, load_sources
from dpsql.sources.policy import Policy

CAP = {"epsilon": 4, "delta": "1e-6", "period": "7 days"}
POLICY = {
    "max_epsilon_per_query": 1,
    "delta_per_query": "1e-8",
    "max_groups_contributed": 5,
    "max_rows_per_group": 3,
    "bounds": {"Stars": [0, 5], "bytes": [0, "1e6"]},
}
DAY = "FROM reviews GROUP BY window(ts, '1 day')"


def declared(policy: dict[str, Any] | None, cap: Any = CAP, **more: Any) -> Sources:
    block = {
        "format": "parquet",
        "path": "reviews",
        "schema": "reviewer STRING, vendor STRING, ts TIMESTAMP, stars INT, bytes DOUBLE",
        "event_time": "ts",
        "privacy_unit": "reviewer",
        "start": "2026-01-01",
        **more,
    }
    block |= {} if policy is None else {"policy": policy}
    return load_sources({"reviews": block | ({} if cap is None else {"cap": cap})})


def asked(text: str, policy: dict[str, Any] | None = None, cap: Any = CAP) -> Query:
    return compile_query(text, declared(POLICY if policy is None else policy, cap))


def private(columns: str, options: str = "") -> str:
    clause = f" OPTIONS ({options})" if options else ""
    return f"SELECT WITH DIFFERENTIAL_PRIVACY{clause} {columns} {DAY}, vendor"


def test_what_a_query_does_not_say_is_the_policys() -> None:
    """Catches: a default that is another one than the policy's, or that is not what the same words written out mean."""
    columns = "vendor, COUNT(*) AS n, AVG(stars) AS mean, SUM(bytes) AS total"
    written = (
        "vendor, COUNT(*) AS n, AVG(stars, contribution_bounds_per_row => (0, 5)) AS mean,"
        "SUM(bytes, contribution_bounds_per_row => (0, 1000000)) AS total"
    )
    options = "epsilon = 1, delta = 1e-8, max_groups_contributed = 5, max_rows_per_group = 3"
    short = asked(private(columns))
    assert short.plan.identity == asked(private(written, options)).plan.identity
    assert (
        short.plan.identity
        == compile_query(private(written, options), declared(None)).plan.identity
    )
    assert (short.parsed.epsilon, short.parsed.delta) == (1, 1e-8)
    limits = {"max_groups_contributed": 5, "max_rows_per_group": 3}
    defaults = dict(short.defaults)
    assert {*defaults.pop("of_policy")} == {"epsilon", "delta", *limits, "stars", "bytes"}
    bounds = {"stars": (0, 5), "bytes": (0, 1e6)}
    assert defaults == {"epsilon": 1, "delta": 1e-8, "bounds": bounds, **limits}
    said = short.explain()
    assert (
        "Defaults: epsilon = 1 (policy); delta = 1e-08 (policy); at most 5 values of vendor"
        in " ".join(said.split())
    )
    assert "bounds of stars 0 to 5 (policy); bounds of bytes 0 to 1,000,000 (policy)." in " ".join(
        said.split()
    )


def test_a_policy_limits_epsilon_and_delta_alone() -> None:
    """Catches: a limit that is none, noise that is held for privacy, a query below the limit that is charged the limit."""
    for option, said in (
        (
            "epsilon = 1.01",
            "epsilon is 1.01, and the policy of reviews has max_epsilon_per_query: 1",
        ),
        ("delta = 2e-8", "delta is 2e-08, and the policy of reviews has delta_per_query: 1e-08"),
        ("privacy_level = EVENT", "The policy of reviews is of level USER"),
    ):
        with pytest.raises(QueryError, match=said) as caught:
            asked(private("vendor, COUNT(*) AS n", option))
        assert "sources.reviews.policy" in str(caught.value) and caught.value.exit_code == 2
    less = asked(private("vendor, COUNT(*) AS n", "epsilon = 0.25, delta = 1e-9"))
    assert (less.plan.epsilon, less.plan.delta) == (0.25, 1e-9)
    assert less.mechanism.account(less.plan, less.source).delta(0.25) <= 1e-9
    more = asked(
        private("vendor, COUNT(*) AS n", "max_groups_contributed = 9, max_rows_per_group = 9")
    )
    assert more.parsed.asked.max_groups_contributed == 9


def test_a_plain_select_leads_to_a_private_one() -> None:
    """Catches: a query that is taken for a private one though it does not say so; a proposal that chooses the epsilon."""
    plain = f"SELECT vendor, COUNT(*) AS n {DAY}, vendor"
    with pytest.raises(QueryError) as caught:
        asked(plain)
    assert caught.value.proposal is not None
    assert caught.value.proposal.text == plain.replace("SELECT", "SELECT WITH DIFFERENTIAL_PRIVACY")
    with pytest.raises(QueryError) as caught:
        compile_query(plain, declared(None))
    assert caught.value.proposal is None


def test_without_a_policy_epsilon_is_required() -> None:
    for text in (
        private("vendor, COUNT(*) AS n"),
        private("vendor, COUNT(*) AS n", "delta = 1e-8"),
    ):
        with pytest.raises(QueryError, match=r"has no OPTIONS|epsilon is required"):
            compile_query(text, declared(None))
        with pytest.raises(QueryError, match=r"has no OPTIONS|epsilon is required"):
            asked(text, {"bounds": {"stars": [0, 5]}})


def test_the_policy_of_rows_is_of_rows() -> None:
    """Catches: a policy at level EVENT whose queries protect users, and unknown keys that no unit proves."""
    policy = {"max_epsilon_per_query": 1, "privacy_level": "EVENT"}
    cap = {"privacy_level": "EVENT", "epsilon": 4, "delta": "1e-6"}
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY COUNT(*) AS n {DAY}"
    query = asked(text, policy, cap)
    assert query.protects == "EVENT"
    with pytest.raises(QueryError, match="Unknown keys are found by the users"):
        asked(private("vendor, COUNT(*) AS n"), policy, cap)
    with pytest.raises(QueryError, match="The policy of reviews is of level EVENT"):
        asked(private("vendor, COUNT(*) AS n", "privacy_level = USER"), policy, cap)


@pytest.mark.parametrize(
    ("policy", "more", "said"),
    [
        ({"max_epsilon_per_query": 1}, {"cap": None}, "write a `cap` of level USER next to it"),
        (
            {"max_epsilon_per_query": 1, "privacy_level": "EVENT"},
            {},
            "write a `cap` of level EVENT",
        ),
        (
            {"max_epsilon": 1},
            {},
            "unknown setting `max_epsilon`: did you mean `max_epsilon_per_query`",
        ),
        ({"max_epsilon_per_query": 0}, {}, "`max_epsilon_per_query` must be a number above 0"),
        ({"bounds": {"stars": [5, 0]}}, {}, "must be two numbers, the lower one first, like"),
        ({"bounds": {"stars": [0, "nan"]}}, {}, "must be two numbers, the lower one first"),
        ({"bounds": {"stars": 5}}, {}, "at sources.reviews.policy.bounds.stars"),
        ({"max_groups_contributed": 0}, {}, "a whole number from 1 on"),
        ({"privacy_level": "PERSON"}, {}, "`privacy_level` must be USER or EVENT"),
    ],
)
def test_a_policy_that_says_nothing_is_refused(
    policy: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        declared(policy, **{"cap": CAP, **more})


def test_no_policy_is_the_same_as_an_empty_one() -> None:
    assert declared({}, None)["reviews"].policy == Policy()


def test_a_policy_is_of_all_sources_of_its_ledger() -> None:
    """Catches: another source of the same people, by which a query asks for more than the policy allows."""
    block = {
        "format": "parquet",
        "schema": "reviewer STRING, stars INT",
        "privacy_unit": "reviewer",
    }
    sources = load_sources(
        {
            "reviews": {**block, "path": "a", "cap": CAP, "policy": POLICY},
            "others": {**block, "path": "b", "ledger": "reviews"},
            "more": {
                **{**block, "path": "c", "ledger": "reviews"},
                "policy": {"bounds": {"stars": [1, 5]}},
            },
        }
    )
    text = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {}) COUNT(*) AS n FROM {}"
    for name, bounds in (("others", None), ("more", (1, 5)), ("reviews", (0, 5))):
        with pytest.raises(QueryError, match=f"policy of {name} has max_epsilon_per_query: 1"):
            compile_query(text.format(3, name), sources)
        assert compile_query(text.format(0.5, name), sources).plan.epsilon == 0.5
        assert sources[name].policy.bounds_of("stars") == bounds
