"""What the paper on growing databases re-runs, and what it answers question by question, beside counters: on a day of Wikipedia edits.

    python benchmarks/papers/growing_schedules.py FILE.parquet [repetitions]      FILE: columns ts, key, value (conf/demo/wiki)

epsilon = 1, delta = 1e-6, one row is protected, the table is as large as a fifth of the file when a run begins; 100 triggers. Spent: what the runs until the
last row cost together, by their own accounting, which is epsilon where delta is 0 and mu where not.

* BBScheduler re-runs a mechanism when the table has grown by a factor of 1 + gamma: one Laplace answer (edits in the first half of the day, as a share of
  rows), and SmallDB over eight parts of the day (11,440 multisets of 9 rows; the eight sums of the first parts are asked). Error: the largest
  distance from the true share at any trigger. Ours: a counter, or eight of them.
* BBImprover re-runs at every row, with smaller and smaller epsilon: linear regression of a value on four features by noisy moments, which any private
  regression that is given that epsilon does not beat by more than a constant. Error: squared loss above the exact fit's. Ours: counters of the moments.
* PMW with its errors mended answers questions of one to three keys: rows of `growing.py`. Error: answers that are further off than alpha.
  Ours: questions whose 95% error is below alpha, for ever.
* A line in SQL, REGR_SLOPE and REGR_INTERCEPT of a value on the hour: real runs with a noise key each. Error: squared loss above the exact fit's, and how
  many bars hold the exact slope.

Noise in float64: it is measured, and protects nobody.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.special import zeta

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import dpsql  # noqa: E402
from benchmarks.papers import growing  # noqa: E402
from benchmarks.papers.growing_rivals import indicator  # noqa: E402
from dpsql.local.feeder import run_batches  # noqa: E402
from dpsql.local.record_reader import RowReader  # noqa: E402
from dpsql.parsed_query import CounterName  # noqa: E402
from dpsql.privacy.curve import total_mu  # noqa: E402
from dpsql.sources.config import Source, Sources  # noqa: E402
from dpsql.text import Z95  # noqa: E402
from dpsql.udfs.noise.counters import column_norm, counter, path_sd  # noqa: E402

EPSILON = 1.0
DELTA = 1e-6
BETA = 0.05
TRIGGERS = 100
PARTS = 8
ROWS_OF_SMALL = 9
FEATURES = 5
PACE = 0.1
"""c of BBImprover."""
ALPHA = 0.1


@dataclass(frozen=True)
class Line:
    """A row of the table: what is promised, what it cost, its error, and ours."""

    name: str
    promise: str
    spent: str
    error: str
    ours: str


def ends_of_triggers(total: int) -> np.ndarray:
    """Sizes of the table at the triggers; the first is a fifth of all."""
    return np.linspace(total / 5, total, TRIGGERS).astype(int)


# BBScheduler


@dataclass(frozen=True)
class BlackBox:
    """A mechanism with error at most g (ln(1 / beta) / (epsilon n))^p, and how it is run: (shares, rows, epsilon, chance) -> shares."""

    name: str
    p: float
    g: float
    run: Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]


def laplace(
    shares: np.ndarray, rows: int, epsilon: float, chance: np.random.Generator
) -> np.ndarray:
    """One answer: the share of the first half."""
    first = shares[: PARTS // 2].sum() + chance.laplace(0, 1 / (epsilon * rows))
    return np.array([first])


def small_tables() -> np.ndarray:
    """Sums of the first parts, of all multisets of nine rows over eight parts; shape (11,440, 8)."""
    places = itertools.combinations(range(ROWS_OF_SMALL + PARTS - 1), PARTS - 1)
    bars = np.array([*places])
    edges = np.hstack(
        [np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), ROWS_OF_SMALL + PARTS - 1)]
    )
    return np.cumsum(np.diff(edges, axis=1) - 1, axis=1) / ROWS_OF_SMALL


SMALL_TABLES = small_tables()


def small_db(
    shares: np.ndarray, rows: int, epsilon: float, chance: np.random.Generator
) -> np.ndarray:
    """Draw a small table by the exponential mechanism; its sums of the first parts."""
    apart = np.abs(SMALL_TABLES - np.cumsum(shares)).max(axis=1)
    score = -epsilon * rows * apart / 2 + chance.gumbel(size=len(apart))
    return SMALL_TABLES[np.argmax(score)]


BOXES = (
    BlackBox("one Laplace answer", 1.0, 1.0, laplace),
    BlackBox("SmallDB", 1 / 3, (64 * math.log(PARTS) ** 2) ** (1 / 3), small_db),
)


def asked(box: BlackBox, shares: np.ndarray) -> np.ndarray:
    """The true answers of what a box is asked."""
    return shares[: PARTS // 2].sum(keepdims=True) if box.p == 1 else np.cumsum(shares)


def scheduled(box: BlackBox, part: np.ndarray, repetitions: int, with_delta: bool) -> Line:
    """BBScheduler as printed, which has no promise where gamma is 1 or more."""
    total = len(part)
    first = total // 5
    exponent = (1.5 if with_delta else 2) * box.p + 1
    log = math.log(1 / BETA)
    gamma = box.g ** (1 / exponent) * (log / (EPSILON * first)) ** (box.p / exponent)
    name = f"BBScheduler, {box.name}, delta {'1e-6' if with_delta else '0'}"
    ours = f"{_counters(box, total):.4f}"
    if gamma >= 1:
        return Line(name, f"none: gamma is {gamma:.2f}", "", "", ours)
    runs = math.floor(math.log(total / first) / math.log1p(gamma)) + 1
    number = np.arange(runs)
    if with_delta:
        each = gamma**1.5 * (number + 1) / (1 + gamma) ** (number + 1.5)
        epsilons = each * EPSILON / (3 * math.sqrt(math.log(1 / DELTA)))
        spent = f"mu {math.sqrt((epsilons**2).sum()):.3f} of {total_mu(EPSILON, DELTA):.3f}"
    else:
        epsilons = EPSILON * gamma**2 * (number + 1) / (1 + gamma) ** (number + 2)
        spent = f"epsilon {epsilons.sum():.3f} of {EPSILON:g}"
    z = math.log((1 + BETA) / BETA)
    promise = box.g * (z / (epsilons[0] * first)) ** box.p + gamma / (1 + gamma)
    sizes = np.ceil(first * (1 + gamma) ** number).astype(int)
    worst = [
        _worst(box, part, sizes, epsilons, np.random.default_rng(seed))
        for seed in range(repetitions)
    ]
    return Line(name, f"{promise:.3f}", spent, f"{np.mean(worst):.4f}", ours)


def _worst(
    box: BlackBox,
    part: np.ndarray,
    sizes: np.ndarray,
    epsilons: np.ndarray,
    chance: np.random.Generator,
) -> float:
    """The largest error at any trigger, with what the newest run has answered."""
    answers = [
        box.run(_shares(part, rows), rows, epsilon, chance)
        for rows, epsilon in zip(sizes.tolist(), epsilons.tolist(), strict=True)
    ]
    worst = 0.0
    for rows in ends_of_triggers(len(part)).tolist():
        newest = answers[np.searchsorted(sizes, rows, side="right") - 1]
        worst = max(worst, float(np.abs(newest - asked(box, _shares(part, rows))).max()))
    return worst


def _shares(part: np.ndarray, rows: int) -> np.ndarray:
    return np.bincount(part[:rows], minlength=PARTS) / rows


def _counters(box: BlackBox, total: int, draws: int = 200) -> float:
    """The mean of the largest error of counters: a row is in one part, whose counter it moves."""
    chosen = counter(CounterName.BLT, TRIGGERS)
    cells = 1 if box.p == 1 else PARTS
    sd = column_norm(chosen) * np.array(path_sd(chosen)) / total_mu(EPSILON, DELTA)
    noise = np.random.default_rng(1).normal(size=(draws, TRIGGERS, cells)) * sd[:, None]
    apart = np.abs(np.cumsum(noise, axis=2)) / ends_of_triggers(total)[:, None]
    return float(apart.max(axis=(1, 2)).mean())


# BBImprover


def improved(frame: pd.DataFrame, repetitions: int) -> list[Line]:
    """Regression at a fifth and at the end of the file."""
    x, y = features(frame)
    total = len(x)
    first = total // 5
    mu = total_mu(EPSILON, DELTA)
    chosen = counter(CounterName.BLT, TRIGGERS)
    height = math.sqrt(2)  # of the moments of one row: |x x'| <= 1 above the diagonal, |x y| <= 1
    all_rows = zeta(1 + 2 * PACE, first)
    lines = []
    for rows, trigger in ((first, 1), (total, TRIGGERS)):
        printed = math.sqrt(PACE) / (3 * math.sqrt(math.log(1 / DELTA)))
        epsilon = printed * EPSILON / rows ** (0.5 + PACE)
        noise = {
            "as printed": math.sqrt(2) * height / epsilon,
            "its rate, with all of mu": height * math.sqrt(all_rows) * rows ** (0.5 + PACE) / mu,
            "ours": height * column_norm(chosen) * path_sd(chosen)[trigger - 1] / mu,
        }
        loss = {
            name: np.mean([_excess(x[:rows], y[:rows], sd, seed) for seed in range(repetitions)])
            for name, sd in noise.items()
        }
        spent = printed * EPSILON * math.sqrt(zeta(1 + 2 * PACE, first) - zeta(1 + 2 * PACE, total))
        name = f"BBImprover, regression, {rows:,} rows"
        ours = f"{loss['ours']:.5f}"
        lines.append(
            Line(
                name,
                "it improves",
                f"mu {spent:.3f} of {mu:.3f}",
                f"{loss['as printed']:.3f}",
                ours,
            )
        )
        again = f"{loss['its rate, with all of mu']:.4f}"
        lines.append(Line(f"the same, all of mu, {rows:,} rows", "it improves", "all", again, ours))
    return lines


def features(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Four features and a constant, |x| <= 1, and the logarithm of the value, |y| <= 1."""
    value = np.clip(np.nan_to_num(frame.value.to_numpy()), 0, 1e4)
    y = np.log1p(value) / math.log1p(1e4) * 2 - 1
    hour = frame.ts.dt.hour.to_numpy() / 23 * 2 - 1
    minute = frame.ts.dt.minute.to_numpy() / 59 * 2 - 1
    place = frame.key.map({key: i for i, key in enumerate(sorted(frame.key.unique()))}).to_numpy()
    columns = [np.ones(len(y)), hour, hour**2 * 2 - 1, minute, place / place.max() * 2 - 1]
    return np.column_stack(columns) / math.sqrt(FEATURES), y


def _excess(x: np.ndarray, y: np.ndarray, sd: float, seed: int) -> float:
    """Squared loss of the fit to noisy moments, above that of the exact fit; a ridge keeps the moments positive."""
    chance = np.random.default_rng(seed)
    moments = x.T @ x
    products = x.T @ y
    noise = np.triu(chance.normal(0, sd, moments.shape))
    noisy = moments + noise + np.triu(noise, 1).T
    least = np.linalg.eigvalsh(noisy)[0]
    ridge = max(0.0, 1.5 * sd * math.sqrt(FEATURES) - least)
    told = products + chance.normal(0, sd, FEATURES)
    fit = np.linalg.solve(noisy + ridge * np.eye(FEATURES), told)
    exact = np.linalg.lstsq(x, y, rcond=None)[0]
    return float(np.mean((y - x @ fit) ** 2) - np.mean((y - x @ exact) ** 2))


# A line in SQL

DAY = 86_400
START_US = 1_767_225_600_000_000
BOUNDS = "contribution_bounds_per_row => ((-1, 1), (-1, 1))"
LINE = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {EPSILON}, delta = {DELTA}, privacy_level = EVENT,
  trigger_interval = '{DAY // TRIGGERS} seconds', max_triggers = {TRIGGERS})
  REGR_SLOPE(y, x, {BOUNDS}) AS slope, REGR_INTERCEPT(y, x, {BOUNDS}) AS at_zero
FROM edits"""


def lines_in_sql(frame: pd.DataFrame, repetitions: int) -> list[Line]:
    """The query at a fifth and at the end of the file, whose rows come evenly over a day."""
    x, y = features(frame)
    hour = x[:, 1] * math.sqrt(FEATURES)
    ts = START_US + np.arange(len(y)) * DAY * 10**6 // len(y)
    table = pa.table({"y": y, "x": hour, "ts": pa.array(ts).cast(pa.timestamp("us", tz="UTC"))})
    source = Source("edits", "parquet", path="", event_time="ts", start_us=START_US)
    query = dpsql.compile(LINE, Sources((source,)))
    reader = RowReader(query.plan, query.sources, bytes(16), {})
    rows = reader.frame(table)
    runs = [
        run_batches(
            query.plan,
            [rows],
            noise_key=number.to_bytes(32, "big"),
            key_types=lambda: reader.key_types,
            until_us=START_US + DAY * 10**6,
            facts=query.facts(reader.public_groups(query.source)),
        ).histogram.to_pandas()
        for number in range(repetitions)
    ]
    lines = []
    for trigger in (TRIGGERS // 5, TRIGGERS):
        size = int(np.searchsorted(ts, START_US + DAY * 10**6 // TRIGGERS * trigger))
        released = pd.concat([run[run.trigger == trigger] for run in runs])
        slope, at_zero = np.polyfit(hour[:size], y[:size], 1)
        off = (released.at_zero - at_zero).to_numpy()[:, None] + np.outer(
            released.slope - slope, hour[:size]
        )
        said = released.slope.notna()
        held = [
            np.mean((abs(released[alias] - true) <= Z95 * released[f"{alias}_stderr"])[said])
            for alias, true in (("slope", slope), ("at_zero", at_zero))
        ]
        lines.append(
            Line(
                f"REGR_SLOPE, {size:,} rows",
                f"95% of bars: {held[0]:.1%}, {held[1]:.1%}",
                f"all, {said.sum()} of {repetitions} say",
                "",
                f"{np.mean(off[said] ** 2):.6f}",
            )
        )
    return lines


# PMW, corrected


@dataclass(frozen=True)
class Affords:
    """How many hits the budget has, and the parts of epsilon and the margin of its tests."""

    hits: int
    of_threshold: float
    of_test: float
    margin: float


def affords(rows: int, questions: int, rho: float) -> Affords | None:
    """Return the most hits with a margin of at most half of alpha n; None: not one."""
    log = math.log(4 * questions / BETA)
    best = None
    for hits in range(1, 4000):
        each = math.sqrt(2 * 0.9 * rho / (hits + 2))
        threshold = 0.4 * each
        test = 0.6 * each
        margin = log / test + math.log(4 * (hits + 2) / BETA) / threshold
        if margin > ALPHA * rows / 2:
            break
        best = Affords(hits, threshold, test, margin)
    return best


def mended_pmw(table: growing.Table, questions: int, seed: int = growing.SEED) -> Line:
    """Two one-sided tests, each with a threshold per hit, the second only if the first does not hit; Gaussian answers; the step 4 g'."""
    chance = np.random.default_rng(seed)
    asked_ = growing.questions(table, questions, chance)
    total = len(table.values)
    first = total // 5
    rho = total_mu(EPSILON, DELTA) ** 2 / 2
    plan = growing.plan_of(table)
    sure = 1.96 * growing.stderrs(plan, asked_) <= ALPHA * np.array([q.rows for q in asked_])
    ours = f"{sure.sum():,} of {questions:,} within"
    bounds = affords(first, questions, rho)
    if bounds is None:
        return Line("PMW corrected", f"alpha {ALPHA}", "", "no hit can be afforded", ours)
    sd = math.sqrt(bounds.hits / (2 * 0.1 * rho))
    place = np.ravel_multi_index(tuple(table.values.T), table.sizes)
    cells = math.prod(table.sizes)
    guess = np.full(cells, 1 / cells)
    thresholds = chance.laplace(0, 1 / bounds.of_threshold, 2)
    rows = first
    hits = right = answered = 0
    for question in asked_:
        if question.rows > rows:
            guess = guess * (rows / question.rows) + (1 - rows / question.rows) / cells
        rows = question.rows
        f = indicator(table.sizes, question.predicate)
        true = float(f @ np.bincount(place[:rows], minlength=cells))
        guessed = float(f @ guess) * rows
        limit = ALPHA * rows - bounds.margin
        hit = None
        for side, gap in enumerate((true - guessed, guessed - true)):
            if (
                hit is None
                and gap + chance.laplace(0, 1 / bounds.of_test) >= limit + thresholds[side]
            ):
                hit = side
        answer = guessed
        if hit is not None:
            if hits == bounds.hits:
                break
            hits += 1
            thresholds[hit] = chance.laplace(0, 1 / bounds.of_threshold)
            answer = true + chance.normal(0, sd)
            guess = guess * np.exp(4 * (answer - guessed) / rows * f)
            guess /= guess.sum()
        answered += 1
        right += abs(answer - true) <= ALPHA * rows
    error = f"answered {answered:,} of {questions:,} with {hits} of {bounds.hits} hits, {right:,} within"
    return Line("PMW corrected", f"alpha {ALPHA}", f"rho {rho:.3f}", error, ours)


def main() -> None:
    """Print the table."""
    file = sys.argv[1]
    repetitions = int(sys.argv[2]) if sys.argv[2:] else 20
    frame = pd.read_parquet(file).sort_values("ts", kind="stable").reset_index(drop=True)
    part = (frame.ts.dt.hour // 3).to_numpy()
    lines = [
        scheduled(box, part, repetitions, with_delta)
        for box in BOXES
        for with_delta in (False, True)
    ]
    lines += improved(frame, repetitions)
    lines += lines_in_sql(frame, 10 * repetitions)
    lines.append(mended_pmw(growing.load("wikiticker", file), 50 * repetitions))
    print("| mechanism | promise | spent | error | ours |\n|---|---|---|---|---|")
    for line in lines:
        print(f"| {line.name} | {line.promise} | {line.spent} | {line.error} | {line.ours} |")


if __name__ == "__main__":
    main()
