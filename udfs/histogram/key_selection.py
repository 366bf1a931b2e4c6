"""Key selection: which groups may appear, and when, without knowing any key beforehand.

A group's users' weights are summed continually under noise; the group is selected at the first trigger i at which the noisy
sum reaches tau_i. Guarantee (docs/privacy/histogram.md): one user changes the sums of at most K groups by w_1..w_K, w_1 = 1, so the
noisy sums are a Gaussian mechanism, which counts of users may contain (`perturbation`); and a group that only this user has crosses at any of the triggers with
probability at most sum_i beta_i. Source: DP-SQLP Algorithms 2 and 4, with a union bound over triggers and decaying weights.

Only groups with an admitted record at or before a trigger are tested there, and from then on at every trigger.
With rounds (RESELECT) a selected group starts anew: fresh noise, no users, the same absolute trigger numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int, find, insert, match, places, sort_order, sort_runs
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.histogram.group_state import Closing
from dpsql.udfs.histogram.memory import CarriedParameters
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import Counter, Draw
from dpsql.udfs.noise.exact_paths import Redraw, path_reaches
from dpsql.udfs.noise.path_error import trust


@dataclass(frozen=True)
class SelectionParameters:
    """sigma in people; thresholds tau_1..tau_T in units of 2^-20; `min_users` exact users (with sliding windows: users' periods)
    before the noisy test; `window_tests`: tests over several windows."""

    counter: Counter
    sigma: float
    thresholds: tuple[int, ...]
    min_users: int
    rounds: bool = False
    window_tests: CarriedParameters | None = None


def crosses(path: Float, weight: Int, trigger: int, p: SelectionParameters, redraw: Redraw) -> Bool:
    """Tell whether each tested group is selected at this trigger: whether its exact real path reaches tau.

    Args:
        path: unit-noise path of every group at this trigger.
        weight: exact sum of the users' weights, in units of 2^-20.
        trigger: 1..horizon.
        p: the plan's numbers.
        redraw: computes the path from its words where float64 cannot tell.
    """
    margin = (
        p.thresholds[trigger - 1] - weight
    ) * WEIGHT_UNIT  # exact: an integer below 2^53 times a power of two
    return path_reaches(path, p.sigma, margin, trigger, trust(p.counter).error[trigger - 1], redraw)


def select(c: Closing, p: SelectionParameters, noise_key: bytes) -> list[Int]:
    """Run the newly closed triggers through selection; returns the groups to release at trigger 0 (none), 1, 2, ...

    Changes c.groups (`weight, users, step, selected_at, round, wake, noise`) and, with rounds, c.members.
    """
    g = c.groups
    to_release: list[Int] = [np.zeros(0, np.int64)] * (c.last + 1)
    rounds = _open_round(c) if p.rounds else None
    for trigger in c.triggers:
        touched = _add_users(c, trigger, rounds)
        is_live = (g["first"] <= trigger) & (c.closed_before < trigger) & (c.closed_now >= trigger)
        waiting = is_live if p.rounds else is_live & (g["selected_at"] == 0)
        g["wake"][touched] = 0
        tested = np.flatnonzero(waiting & (g["users"] >= p.min_users) & (g["wake"] <= trigger))
        advance_to(c, tested, trigger, p, noise_key)
        hit = tested[
            crosses(
                g["noise"][tested, 0],
                g["weight"][tested],
                trigger,
                p,
                _redraw(c, tested, p, noise_key),
            )
        ]
        g["selected_at"][hit] = trigger
        to_release[trigger] = hit if p.rounds else np.flatnonzero(is_live & (g["selected_at"] > 0))
        if rounds:
            rounds.since[hit] = trigger
            _new_round(g, hit)
    if rounds:
        _close_round(c, rounds)
    return to_release


def predict(c: Closing, p: SelectionParameters, noise_key: bytes) -> None:
    """Put groups without records at the last closed trigger to sleep (Algorithm 4) until noise alone would select them.

    Sets `wake` to the first later trigger at which the group crosses if nobody joins (horizon + 1: never). A joining user
    wakes it. Testing only the awake gives the same releases as testing all, because the noise is a function of the trigger.

    Looking ahead costs the rest of the window and is lost when somebody joins. So only groups sleep that expect less than one
    more user, going by how many came so far; which ones they are changes the work and nothing else.
    """
    asleep = np.flatnonzero(_expects_nobody(c, p))
    if not len(asleep):
        return
    g = c.groups
    horizon = p.counter.horizon
    state = g["noise"][asleep].copy()
    step = g["step"][asleep].copy()
    wake = np.full(len(asleep), horizon + 1)
    trusted = trust(p.counter)
    for trigger in range(int(step.min()) + 1, horizon + 1):
        moving = np.flatnonzero((step == trigger - 1) & (wake > horizon))
        groups = asleep[moving]
        state[moving] = trusted.advance(
            state[moving], _draws(c, groups, trigger, noise_key), trigger
        )
        step[moving] = trigger
        redraw = _redraw(c, groups, p, noise_key)
        has_crossed = crosses(state[moving, 0], g["weight"][groups], trigger, p, redraw)
        wake[moving[has_crossed]] = trigger
    g["wake"][asleep] = wake


def _expects_nobody(c: Closing, p: SelectionParameters) -> Bool:
    """Tell which groups without records at the last closed trigger expect less than one more user."""
    g = c.groups
    horizon = p.counter.horizon
    is_silent = (
        (g["wake"] == 0)
        & (c.closed_now < horizon)
        & (c.closed_now > 0)
        & (g["users"] >= p.min_users)
        & (g["step"] == c.closed_now)
    )
    is_silent &= p.rounds | (g["selected_at"] == 0)
    is_silent &= g["users"] * (horizon - c.closed_now) <= c.closed_now
    is_silent[c.due.group[c.due.trigger == c.closed_now[c.due.group]]] = False
    return is_silent


def advance_to(
    c: Closing, groups: Int, trigger: int, p: SelectionParameters, noise_key: bytes
) -> None:
    """Bring the selection paths of the given groups up to a trigger, from wherever each of them is."""
    step = c.groups["step"]
    trusted = trust(p.counter)
    for next_trigger in range(int(step[groups].min(initial=trigger)) + 1, trigger + 1):
        moving = groups[step[groups] == next_trigger - 1]
        c.groups["noise"][moving] = trusted.advance(
            c.groups["noise"][moving], _draws(c, moving, next_trigger, noise_key), next_trigger
        )
        step[moving] = next_trigger


def _draws(c: Closing, groups: Int, trigger: int, noise_key: bytes) -> Draw:
    tag = c.tag[groups]
    round_ = c.groups["round"][groups]
    return lambda number: randomness.normals(
        noise_key, tag, randomness.SELECTION, round_, trigger, number
    )


def _redraw(c: Closing, groups: Int, p: SelectionParameters, noise_key: bytes) -> Redraw:
    return Redraw(noise_key, c.tag, groups, randomness.SELECTION, c.groups["round"], p.counter)


@dataclass(frozen=True)
class _Round:
    """Who is new to a group's current round, for one tick of selection with rounds.

    previous: per due row, the trigger of this tick before it at which the user was in the group; 0: only in `members`, -1: neither.
    since: per group, the trigger of this tick at which its round began; -1: before this tick.
    new: per due row, whether its user was new to the round (filled trigger by trigger).
    """

    previous: Int
    since: Int
    new: Bool


def _open_round(c: Closing) -> _Round:
    """Open a tick of rounds by one sort: looking every trigger's users up in all users before them would be a sort per trigger."""
    group = c.due.group
    user = c.due.sums["user"]
    trigger = c.due.trigger
    order, starts = sort_runs(group, user)
    previous = np.full(len(order), -1, np.int64)
    previous[order[1:]] = np.where(starts[1:], -1, trigger[order[:-1]])
    head = order[starts]
    previous[
        head[match([group[head], user[head]], [c.members["group"], c.members["user"]]) >= 0]
    ] = 0
    return _Round(previous, np.full(len(c.closed_before), -1, np.int64), np.zeros(len(order), bool))


def _close_round(c: Closing, r: _Round) -> None:
    """Drop the users of ended rounds from c.members, and add the new users of the current rounds."""
    current = c.members["round"] == c.groups["round"][c.members["group"]]
    if not current.all():
        c.members.update({name: column[current] for name, column in c.members.items()})
    new = np.flatnonzero(r.new & (c.due.trigger > r.since[c.due.group]))
    new = new[sort_order(c.due.group[new], c.due.sums["user"][new])]
    group = c.due.group[new]
    user = c.due.sums["user"][new]
    where = places(find([group, user], [c.members["group"], c.members["user"]])[0])
    for name, column in (("group", group), ("round", c.groups["round"][group]), ("user", user)):
        c.members[name] = insert(c.members[name], column, where)


def _add_users(c: Closing, trigger: int, r: _Round | None) -> Int:
    """Add the trigger's users; with rounds only those new to the group's round. Returns the groups that had records."""
    g = c.groups
    part = c.due.rows_of(trigger)
    group = c.due.group[part]
    weight = c.due.sums["weight"][part]
    users = c.due.sums["users"][part]
    if r is not None:
        new = r.previous[part] <= r.since[group]
        r.new[part] = new
        np.add.at(g["weight"], group[new], weight[new])
        np.add.at(g["users"], group[new], 1)
    else:
        g["weight"][group] += weight
        g["users"][group] += users
    return group


def _new_round(g: dict, hit: Int) -> None:
    for name in ("weight", "users", "step", "wake"):
        g[name][hit] = 0
    g["noise"][hit] = 0.0
    g["round"][hit] += 1
