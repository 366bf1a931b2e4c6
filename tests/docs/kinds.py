"""Which aggregates and options each kind of query takes: every cell of the table is compiled. The reference has the table."""

from itertools import combinations

from dpsql.compiled import Query, compile_query
from dpsql.errors import QueryError
from tests.sql.golden import sources

UNIT = "privacy_unit_column = user_id, max_rows_contributed = 8"
LISTED = "public_groups = (SELECT page FROM pages)"
KINDS = {
    "histogram": f"(epsilon = 1, delta = 1e-6, {UNIT}, trigger_interval = '1 hour') url, {{}} FROM visits GROUP BY url, window(ts, '1 day')",
    "sliding": f"(epsilon = 1, delta = 1e-6, {UNIT}, {LISTED}) url, {{}} FROM visits GROUP BY url, window(ts, '1 day', '1 hour')",
    "dynamic": f"(epsilon = 1, delta = 1e-6, {UNIT}, trigger_interval = '1 day') url, {{}} FROM visits GROUP BY url",
    "dynamic, rows end": "(epsilon = 1, delta = 1e-6, privacy_unit_column = owner_id, max_rows_contributed = 8, trigger_interval = '1 day') "
    "branch, {} FROM accounts GROUP BY branch",
    "marginals": f"(epsilon = 1, delta = 1e-6, {UNIT}, trigger_interval = '1 day') url, {{}} FROM visits GROUP BY CUBE(url)",
    "sketch": f"(epsilon = 1, delta = 1e-6, {UNIT}, trigger_interval = '1 hour') {{}} FROM visits GROUP BY window(ts, '1 day')",
}
"""Name -> the smallest query of the kind, with a place for its aggregates."""
OF_LISTS = {
    "COUNT": "APPROX_TOP_COUNT(url, 9) AS n",
    "SUM": "APPROX_TOP_SUM(url, {}, 9, contribution_bounds_per_row => (0, 60)) AS total",
}
OF_LISTS["contribution_bounds_per_group"] = (
    "APPROX_TOP_SUM(url, {}, 9, contribution_bounds_per_group => (0, 60)) AS in_all"
)
"""How a list says it."""
AGGREGATES = {
    "COUNT": "COUNT(*) AS n",
    "SUM": "SUM({}, contribution_bounds_per_row => (0, 60)) AS total",
    "COUNT(DISTINCT unit)": "COUNT(DISTINCT {}) AS units",
    "AVG": "AVG({}, contribution_bounds_per_row => (0, 60)) AS mean",
    "STDDEV, VARIANCE": "STDDEV({}, contribution_bounds_per_row => (0, 60)) AS spread, VAR_POP({}, contribution_bounds_per_row => (0, 60)) AS v",
    "CORR, COVAR_POP, REGR_SLOPE, REGR_INTERCEPT": "REGR_SLOPE({}, {} + 1, contribution_bounds_per_row => ((0, 60), (1, 61))) AS slope",
    "contribution_bounds_per_group": "SUM({}, contribution_bounds_per_group => (0, 60)) AS in_all",
    "APPROX_QUANTILES": "APPROX_QUANTILES({}, 4, contribution_bounds_per_row => (0, 60)) AS quartiles",
}
OPTIONS = {
    "max_rows_per_group, max_groups_contributed": (
        "max_rows_contributed = 8",
        "max_rows_per_group = 2, max_groups_contributed = 2",
    ),
    "privacy_level = EVENT": (UNIT, "privacy_level = EVENT"),
}
"""Row -> what is written instead of what, beside a COUNT."""
REASONS = {
    ("COUNT(DISTINCT unit)", "marginals"): "not linear",
    ("APPROX_QUANTILES", "marginals"): "not linear",
    (
        "CORR, COVAR_POP, REGR_SLOPE, REGR_INTERCEPT",
        "dynamic, rows end",
    ): "not yet of tables whose rows end",
    ("contribution_bounds_per_group", "dynamic, rows end"): "would depend on what was cut",
    ("contribution_bounds_per_group", "marginals"): "not in CUBE",
    ("privacy_level = EVENT", "dynamic, rows end"): "protects a row that stays",
    **{(row, "sketch"): "not supported with a sketch" for row in AGGREGATES if row not in OF_LISTS},
}
"""Of the cells that are refused: why. A list has one number a value, so it has no other aggregate."""
APART = {
    "COUNT(DISTINCT unit)": "An event has no user",
    "max_rows_per_group, max_groups_contributed": "protects one row, whoever it belongs to",
    "contribution_bounds_per_group": "protects one row, which is all that is bounded",
}
"""What does not stand beside EVENT, and why."""


def query(kind: str, *rows: str) -> str:
    """The kind's query with some rows of the table."""
    ends = kind == "dynamic, rows end"
    text = KINDS[kind]
    given = [row for row in rows if row in AGGREGATES] or ["COUNT"]
    if kind == "sketch" and not set(given) & set(OF_LISTS):
        given.append("COUNT")  # it is a list that makes the kind
    calls = [
        OF_LISTS.get(row, AGGREGATES[row]) if kind == "sketch" else AGGREGATES[row] for row in given
    ]
    column, unit = ("balance", "owner_id") if ends else ("seconds", "user_id")
    text = text.format(
        ", ".join(call.replace("{}", unit if "DISTINCT" in call else column) for call in calls)
    )
    if kind == "sketch" and "contribution_bounds_per_group" in rows:
        text = text.replace("trigger_interval", f"{LISTED}, trigger_interval")
    for old, new in (OPTIONS[row] for row in rows if row in OPTIONS):
        new += f", {LISTED}" if "EVENT" in new and kind in ("histogram", "dynamic") else ""
        new += (
            ", public_groups = (SELECT page FROM pages)"
            if "EVENT" in new and ends
            else ", max_rows_contributed = 8"
            if ends
            else ""
        )
        text = text.replace(
            "privacy_unit_column = owner_id, max_rows_contributed = 8"
            if ends and old == UNIT
            else old,
            new,
        )
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS {text}"


def compiled(kind: str, *rows: str) -> Query | QueryError:
    """What becomes of it."""
    try:
        return compile_query(query(kind, *rows), sources(), "cell.sql")
    except QueryError as refused:
        return refused


def taken(kind: str, row: str) -> str:
    """A cell: whether the query is accepted, or which other kind takes it."""
    found = compiled(kind, row)
    if isinstance(found, QueryError):
        return "no"
    return "yes" if kind.startswith(found.plan.mechanism) else f"as `{found.plan.mechanism}`"


def pairs() -> list[tuple[str, str, str]]:
    """(kind, row, row): what stands alone in a query of the kind, two at a time."""
    rows = (*AGGREGATES, *OPTIONS)
    return [
        (kind, a, b)
        for kind in KINDS
        for a, b in combinations(rows, 2)
        if (a, kind) not in REASONS and (b, kind) not in REASONS
    ]


def table() -> str:
    """As the reference shows it."""
    rows = [f"| | {' | '.join(KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
    rows += [
        f"| `{row}` | {' | '.join(taken(kind, row) for kind in KINDS)} |"
        for row in (*AGGREGATES, *OPTIONS)
    ]
    return "\n".join(rows) + "\n"
