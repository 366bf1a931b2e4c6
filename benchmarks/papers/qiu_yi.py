"""The mechanism of Qiu and Yi (*Differential Privacy on Dynamic Data*, arXiv 2209.01387) as printed, and ours on the same streams.

    python benchmarks/papers/qiu_yi.py [seeds]             mean absolute error of a count on three streams, epsilon = 1, one row protected
    python benchmarks/papers/qiu_yi.py --growth [seeds]    against the number of updates, the table as large as ever; writes docs/figures/qiu-yi.svg
    python benchmarks/papers/qiu_yi.py --sparse [seeds [steps]]    2,000 rows that begin in a million steps, and none ends; error at all steps
    python benchmarks/papers/qiu_yi.py --same-item         one deletion of an item that was inserted twice; no noise

Theirs: pure, Laplace noise, segments by the sparse vector technique, Chan-Shi-Song counters of deletions. Of its errors (docs/privacy/dynamic.md)
only these are mended: partition and tree share epsilon, half and half; rows are deleted by identity; the size bound of a node holds at all its
segments together. Ours: both stages of a plan at (1, 1e-9), C = 1, with a trigger at the end of each of the same segments. Noise in float64:
theirs protects nobody.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

CHECKOUT = Path(__file__).resolve().parents[2]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.charts import Line, Panel, draw  # noqa: E402
from dpsql.mechanisms.dynamic.planner import make_plan  # noqa: E402
from dpsql.mechanisms.dynamic.stages import stages  # noqa: E402
from dpsql.udfs.columns import mix  # noqa: E402
from dpsql.udfs.keys import PublicGroups  # noqa: E402
from dpsql.udfs.stage import Clock, Tick  # noqa: E402
from tests.mechanisms.dynamic import plans  # noqa: E402
from tests.property.plans import COUNT  # noqa: E402

EPSILON = 1.0
DELTA = 1e-9
BETA = 1e-3
NOISE_KEYS = 4
"""Of ours, per stream."""
STREAMS = {
    "grows to 20,000, then as many begin as end": (400_000, 20_000, None),
    "grows to 20,000, shrinks to 500, then as many begin as end": (400_000, 20_000, 500),
    "19 of 20 updates begin a row": (200_000, None, None),
}
"""Updates; rows at which it stops to grow; rows to which it shrinks then."""
SQUARES = 6 / math.pi**2
"""Shares 1 / k^2 of all k add up to 1 with that."""


def updates(
    total: int, peak: int | None, floor: int | None, chance: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """(row, 1) where one begins, (row, -1) where one ends, chosen among all that are there."""
    there: list[int] = []
    phase = 0
    for row, (coin, which) in enumerate(chance.random((total, 2)).tolist()):
        if phase == 0 and peak is not None and len(there) >= peak:
            phase = 1
        if phase == 1 and (floor is None or len(there) <= floor):
            phase = 2
        if not there or coin < (0.95, 0.05, 0.5)[phase]:
            there.append(row)
            yield row, 1
        else:
            at = int(which * len(there))
            there[at], there[-1] = there[-1], there[at]
            yield there.pop(), -1


class EndlessCount:
    """Chan, Shi and Song's counter without a last step: sums of dyadic ranges of steps, and a binary tree inside the newest one; half of epsilon each."""

    def __init__(self, epsilon: float, chance: np.random.Generator) -> None:
        self._epsilon = epsilon
        self._chance = chance
        self._steps = 0
        self._sum = 0.0
        self._of_ranges = 0.0
        self._nodes: dict[tuple[int, int], float] = {}
        self._scales: list[float] = []

    def add(self, value: float) -> float:
        """The noisy sum with one more step."""
        self._steps += 1
        self._sum += value
        newest = self._steps.bit_length() - 1
        if newest and self._steps == 1 << newest:
            self._of_ranges += self._chance.laplace(0, 2 / self._epsilon)
            self._nodes = {}
        inside = self._steps - (1 << newest) + 1
        scale = 2 * (newest + 1) / self._epsilon
        noise = 0.0
        first = 0
        for height in range(newest, -1, -1):
            if inside >> height & 1:
                if (height, first) not in self._nodes:
                    self._nodes[height, first] = self._chance.laplace(0, scale)
                noise += self._nodes[height, first]
                first += 1 << height
        self._scales = [scale] * inside.bit_count() + [2 / self._epsilon] * newest
        return self._sum + self._of_ranges + noise

    def error(self, beta: float) -> float:
        """What the noise of the newest sum exceeds with probability beta at most (their corollary 2.9)."""
        log = math.log(2 / beta)
        return math.sqrt(8 * log) * max(
            math.hypot(*self._scales), max(self._scales) * math.sqrt(log)
        )


@dataclass
class Node:
    """Algorithm 3: a node of the interval tree, its rows released once a round, and counters of those deleted since."""

    rows: int
    epsilon: float
    chance: np.random.Generator
    round_: int = 0
    halted: bool = False
    answer: float = 0.0

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.round_ += 1
        each = SQUARES * self.epsilon / (4 * self.round_**2)
        self._each = each
        self._beta = BETA / (math.pi**2 * self.round_**2)
        self._size = self.rows + self.chance.laplace(0, 1 / each)
        self._released = self.answer = self.rows + self.chance.laplace(0, 1 / each)
        self._removed = EndlessCount(each, self.chance)
        self._counted = EndlessCount(each, self.chance)
        self._segments = self._gone = 0

    def close(self, deleted: int) -> None:
        """One more segment, in which so many of its rows were deleted."""
        self.rows -= deleted
        if self.halted:
            return
        self._segments += 1
        removed = self._removed.add(deleted)
        counted = self._counted.add(deleted)
        allowed = self._counted.error(self._beta / (self._segments * (self._segments + 1)))
        if counted <= self._size / 2 + 2 * allowed:
            self.answer = self._released - removed
            return
        self._begin()
        if self._size < 2 * allowed:
            self.halted = True
            self.answer = 0.0


class Segments:
    """Algorithm 2: the sparse vector technique on the number of updates; a segment also ends at the square of the one before's end."""

    def __init__(self, epsilon: float, chance: np.random.Generator) -> None:
        self._epsilon = epsilon
        self._chance = chance
        self._number = 0
        self._limit = 2.0
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._updates = 0
        beta = SQUARES * BETA / self._number**2
        self._threshold = 7 / self._epsilon * math.log(
            2 * self._limit / beta
        ) + self._chance.laplace(0, 2 / self._epsilon)

    def ends(self, now: int, updates: int = 1) -> bool:
        """Whether it ends with one more step, which is number `now` and has so many updates."""
        self._updates += updates
        if (
            self._updates + self._chance.laplace(0, 4 / self._epsilon) <= self._threshold
            and now < self._limit
        ):
            return False
        self._limit = float(now) ** 2
        self._begin()
        return True


@dataclass
class Followed:
    """A stream with its segments: of each row when it began and ended; at each segment's end the updates and rows so far, and their answer."""

    begun: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)


def follow(stream: Iterator[tuple[int, int]], chance: np.random.Generator) -> Followed:
    """Run the paper's mechanism."""
    out = Followed()
    segments = Segments(EPSILON / 2, chance)
    nodes = dict[int, Node]()
    born, alive = dict[int, int](), Counter[int]()  # segment of a row's begin; rows by it
    segment = 1
    deleted = list[int]()
    for number, (row, sign) in enumerate(stream, start=1):
        if sign > 0:
            born[row] = segment
            alive[segment] += 1
            out.begun.append((row, segment))
        else:
            alive[born[row]] -= 1
            if born[row] < segment:  # else no node has it
                deleted.append(born[row])
            del born[row]
            out.ended.append((row, segment))
        if not segments.ends(number):
            continue
        of_node = Counter(next(i for i in nodes if i - (i & -i) < begin <= i) for begin in deleted)
        for i, node in nodes.items():
            node.close(of_node[i])
        low = segment & -segment
        nodes = {i: node for i, node in nodes.items() if segment < i + (i & -i)}
        size = sum(alive[begin] for begin in range(segment - low + 1, segment + 1))
        nodes[segment] = Node(size, EPSILON / 2 * SQUARES / low.bit_length() ** 2, chance)
        out.updates.append(number)
        out.rows.append(len(born))
        out.theirs.append(sum(node.answer for node in nodes.values()))
        segment = segment + 1
        deleted = []
    return out


def ours(given: Followed, seed: int) -> np.ndarray:
    """The released counts, for a trigger at the end of each segment; one line per noise key."""
    query = plans.query(
        feed=plans.FEED,
        keys=(),
        aggregates=(COUNT,),
        epsilon=EPSILON,
        delta=DELTA,
        max_rows_contributed=1,
    )
    nobody = PublicGroups((0,), (b"",), plans.START)
    intake, release = stages(make_plan(query, plans.source()), nobody)
    triggers = len(given.rows)
    row, segment = np.array(given.begun + given.ended, np.int64).T
    kind = np.repeat(np.array([1, -1], np.int8), (len(given.begun), len(given.ended)))
    within = segment <= triggers
    row = row[within]
    segment = segment[within]
    kind = kind[within]
    table = {
        "drop": np.zeros(len(row), np.int8),
        "user": mix(row).view(np.int64),
        "row": mix(row).view(np.int64),
        "seq": segment,
    }
    table |= {
        "ts": plans.START + (segment - 1) * plans.HOUR + 1,
        "key": np.zeros(len(row), np.int64),
        "kind": kind,
    }
    columns = pa.table(table | {"key_bytes": pa.array([b""] * len(row), pa.binary())}).select(
        intake.takes.names
    )
    end = plans.START + triggers * plans.HOUR
    added = intake.step(intake.empty(), columns, Clock(plans.START, end), b"").rows
    added = added.append_column("batch", pa.array(np.zeros(added.num_rows, np.int64)))
    key = [(1000 * seed + number).to_bytes(32, "big") for number in range(NOISE_KEYS)]
    return np.array(
        [
            release.step(release.empty(), added, [Tick(0, end)], each).rows["c0"].to_numpy()
            for each in key
        ]
    )


def errors(name: str, seeds: int) -> tuple[float, float, str]:
    """Theirs and ours: mean absolute errors over the second half of the triggers, and what happened."""
    both = []
    for seed in range(1, seeds + 1):
        chance = np.random.default_rng([seed, list(STREAMS).index(name)])
        given = follow(updates(*STREAMS[name], chance), chance)
        rows = np.array(given.rows)
        half = len(given.rows) // 2
        apart = (
            np.abs(np.array(given.theirs) - rows)[half:].mean(),
            np.abs(ours(given, seed) - rows)[:, half:].mean(),
        )
        both.append((*apart, len(rows), rows[-1]))
    theirs, mine, segments, left = np.mean(both, axis=0)
    each = ", ".join(f"{seed[0]:,.0f}" for seed in both)
    return theirs, mine, f"(by seed: {each}); {segments:.0f} segments, {left:,.0f} rows at the end"


def growth(seeds: int) -> None:
    """Errors between doublings of the number of updates, at 20,000 rows."""
    total = 1_600_000
    edges = [25_000 << k for k in range(7)]
    found = np.zeros((2, len(edges) - 1))
    for seed in range(1, seeds + 1):
        chance = np.random.default_rng(seed)
        given = follow(updates(total, 20_000, None, chance), chance)
        rows = np.array(given.rows)
        at = np.searchsorted(edges, given.updates) - 1
        apart = np.abs(np.array(given.theirs) - rows), np.abs(ours(given, seed) - rows).mean(axis=0)
        found += [
            [each[at == place].mean() / seeds for place in range(len(edges) - 1)] for each in apart
        ]
    for place, (theirs, mine) in enumerate(found.T):
        print(
            f"updates {edges[place]:>9,} to {edges[place + 1]:>9,}: as printed {theirs:>9,.0f}, ours {mine:>5,.1f}"
        )
    lines = [
        Line(label, edges[1:], values.tolist())
        for label, values in zip(("Qiu and Yi, as printed", "ours"), found, strict=True)
    ]
    draw(
        CHECKOUT / "docs" / "figures" / "qiu-yi.svg",
        [Panel("A count of 20,000 rows", "updates so far", "mean error, rows", lines, log=True)],
    )


SPARSE_ROWS = 2_000
BATCH = 1_000
"""Steps of a micro-batch."""


def sparse_counts(rows_of_step: np.ndarray, chance: np.random.Generator) -> dict[str, np.ndarray]:
    """What is told at each step: by the paper's segments and a counter of them with half of epsilon each, and by that counter of all steps."""
    segments = Segments(EPSILON / 2, chance)
    of_segments = EndlessCount(EPSILON / 2, chance)
    of_steps = EndlessCount(EPSILON, chance)
    by_segments = np.zeros(len(rows_of_step))
    by_steps = np.zeros(len(rows_of_step))
    told = 0.0
    waiting = 0
    for step, rows in enumerate(rows_of_step.tolist()):
        waiting += rows
        if segments.ends(step + 1, rows):
            told = of_segments.add(waiting)
            waiting = 0
        by_segments[step] = told
        by_steps[step] = of_steps.add(rows)
    return {"segments, as printed": by_segments, "a counter of all steps": by_steps}


def ours_of_growing(rows_of_step: np.ndarray, seed: int) -> np.ndarray:
    """The released counts of a table that only grows, with a trigger at each step, for one noise key."""
    query = plans.query(
        keys=(), aggregates=(COUNT,), epsilon=EPSILON, delta=DELTA, max_rows_contributed=1
    )
    _, release = stages(make_plan(query, plans.source()), PublicGroups((0,), (b"",), plans.START))
    trigger = np.flatnonzero(rows_of_step) + 1
    table = {name: np.zeros(len(trigger), np.int64) for name in ("key", "weight", "batch")}
    table |= {"window": np.full(len(trigger), plans.START), "trigger": trigger}
    table |= {name: rows_of_step[trigger - 1] for name in ("users", "v0")}
    added = pa.table(table | {"key_bytes": pa.array([b""] * len(trigger), pa.binary())})
    added = added.select([*release.takes.names])
    state = release.empty()
    out = []
    for first in range(0, len(rows_of_step), BATCH):
        within = added.filter((trigger > first) & (trigger <= first + BATCH))
        tick = Tick(0, plans.START + (first + BATCH) * plans.HOUR)
        released = release.step(state, within, [tick], seed.to_bytes(32, "big"))
        state = released.state
        out.append(released.rows["c0"].to_numpy())
    return np.concatenate(out)


def sparse(seeds: int, steps: int) -> None:
    """Print mean and largest errors over all steps."""
    found = dict[str, list[tuple[float, float]]]()
    for seed in range(1, seeds + 1):
        chance = np.random.default_rng([seed, SPARSE_ROWS])
        at = chance.integers(0, steps, SPARSE_ROWS)
        rows = np.bincount(at, minlength=steps)
        told = sparse_counts(rows, chance) | {"ours": ours_of_growing(rows, seed)}
        for name, counts in told.items():
            apart = np.abs(counts - np.cumsum(rows))
            found.setdefault(name, []).append((apart.mean(), apart.max()))
    for name, each in found.items():
        mean, largest = np.mean(each, axis=0)
        print(f"{name}: mean error {mean:,.1f}, largest {largest:,.0f}", flush=True)


def same_item() -> None:
    """What "x in D(v)" answers, and what identities do: x begins in segments 1 and 5, and one of the two rows ends in segment 7."""
    begins = {1: "first", 5: "second"}
    ends = {7: "first"}
    there = dict[str, int]()
    by_item = dict[int, int]()
    by_row = dict[int, set[str]]()
    for segment in range(1, 9):
        if segment in begins:
            there[begins[segment]] = segment
        if segment in ends:
            del there[ends[segment]]
            by_item = {node: max(count - 1, 0) for node, count in by_item.items()}
            by_row = {node: rows - {ends[segment]} for node, rows in by_row.items()}
        held = {
            row for row, begin in there.items() if segment - (segment & -segment) < begin <= segment
        }
        by_item[segment], by_row[segment] = len(held), held
        nodes = list[int]()
        rest = segment
        while rest:
            nodes.append(rest)
            rest &= rest - 1
        told = sum(by_item[node] for node in nodes), sum(len(by_row[node]) for node in nodes)
        print(
            f"segment {segment}, nodes {nodes}: as printed {told[0]}, by identity {told[1]}, there are {len(there)}"
        )


def main() -> None:
    """By the first argument."""
    given = sys.argv[1:]
    if given[:1] == ["--same-item"]:
        same_item()
    elif given[:1] == ["--sparse"]:
        sparse(*(int(word) for word in (*given[1:], *("3", "1000000")[len(given) - 1 :])))
    elif given[:1] == ["--growth"]:
        growth(int(given[1]) if given[1:] else 3)
    else:
        for name in STREAMS:
            theirs, mine, more = errors(name, int(given[0]) if given else 5)
            print(f"{name}: as printed {theirs:,.0f}, ours {mine:.1f} {more}", flush=True)


if __name__ == "__main__":
    main()
