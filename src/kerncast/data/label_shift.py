"""Find labels that fit a neighbouring row better than their own: the sign of a join by position.

A robust model, fitted on other problems, predicts every row. The most likely path of shifts through the
file is then found (how many rows away does each label belong?), where changing the shift costs as much as
several rows that plainly do not fit.

Rows of one shape share most of their prediction error: if it is predicted too slow, all its configs are, and a neighbour
that is predicted faster seems to fit all of them. So a label is compared with what the labels before it say of its
shape: thirty rows of one shape are not thirty witnesses to one error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.errors import NotFound
from kerncast.library.devices import get as get_device

DeviceOf = Callable[[str], Device]

NOT_SUSPECT = "suspect=false"
"""The `where` condition that means `without_suspect`. A model records it and applies it when it is refitted."""
FURTHEST_SHIFT = 32
# In units of the typical prediction error: the maximum cost of a row, and the cost of a change of shift.
WORST_FIT = 4.0
SHIFT_CHANGE_COST = 30.0
SMALLEST_ERROR = 0.02
FEWEST_ROWS = 100
FEWEST_SHAPES = 10
FEWEST_TRUSTED = 0.4
# From a median absolute deviation to a standard deviation, for normal errors.
TO_SIGMA = 1.4826
# Rows of one shape in a row, from which what they share can be told from what each has for itself.
FEWEST_IN_VISIT = 3
# Rows of one shape that say something of their own; more of them count by the root of their number.
MOST_WITNESSES = 25.0
# Typical errors beyond which an error no longer counts for more in what is said of its shape.
FAR_OFF = 20.0
# A stretch is shifted only if its rows fit themselves this badly on average; the neighbour may fit well by chance.
OWN_MISFIT = 1.25
# Beyond the stretch itself, a row is taken for shifted when it is this many typical errors off.
PLAIN_MISFIT = 3.0
# Above these limits the check samples (training rows) or stops (checked rows), and says so.
TRAINING_ROWS = 20_000
CHECKED_ROWS = 300_000
FOLDS = 5
MOST_STRETCHES = 200
ROUNDS = 3
FITTED = {
    "objective": "regression_l1", "num_leaves": 31, "learning_rate": 0.1, "verbose": -1, "seed": 0,
    "deterministic": True, "force_row_wise": True, "num_threads": 1,
}  # fmt: skip


@dataclass(frozen=True)
class ShiftedRows:
    """A stretch of one source whose labels belong `shift` rows further on; rows are counted from 0 in that source."""

    source: str | None
    first: int
    last: int
    shift: int


@dataclass(frozen=True)
class LabelShift:
    """The stretches found, and which rows (by position in the frame) are suspect."""

    checked_rows: int
    reason: str
    stretches: tuple[ShiftedRows, ...]
    suspect: Flags


def find_label_shift(family: Family, rows: pl.DataFrame, device_of: DeviceOf = get_device) -> LabelShift:
    """Look for shifted labels in each source separately, in the order in which its rows were recorded."""
    placed = rows.select("source", "source_line", "device", ok=pl.col("status") == "ok")
    in_order = rows["order"].null_count() == 0
    return find_shift_in(family, placed, in_order, lambda places: rows[places], device_of)


def find_shift_in(
    family: Family,
    placed: pl.DataFrame,
    in_order: bool,
    rows_at: Callable[[Ints], pl.DataFrame],
    device_of: DeviceOf = get_device,
    most_rows: int | None = None,
) -> LabelShift:
    """The same for rows that are not in memory: `placed` says of each its source, line and device and whether it is ok.

    Rows with equal values in `source` are of one source; the sources are taken in the order of these values. `rows_at` gives
    rows by their places. At most `most_rows` are checked in all. `in_order`: every row was recorded as it was measured.
    """
    suspect = np.zeros(placed.height, dtype=bool)
    stretches: list[ShiftedRows] = []
    reasons: list[str] = []
    checked = 0
    known = placed.with_row_index("__row").filter(pl.col("source_line").is_not_null())
    if known.is_empty():
        reason = "each time was measured and recorded with its own row" if in_order else "the rows carry no source line"
        return LabelShift(0, reason, (), suspect)
    for part in known.sort("source", "source_line", maintain_order=True).partition_by("source", maintain_order=True):
        # The same numbering for every device of a source: a row's place among all rows of the source.
        numbered = part.with_row_index("__place").filter("ok")
        for whole in numbered.partition_by("device", maintain_order=True):
            table = whole.head(CHECKED_ROWS if most_rows is None else min(CHECKED_ROWS, most_rows - checked))
            if table.height < min(FEWEST_ROWS, whole.height):
                continue
            places, positions = (table[name].to_numpy().astype(np.int64) for name in ("__place", "__row"))
            rows = rows_at(positions)
            found, reason = _check(family, rows, device_of)
            if reason:
                reasons.append(reason)
                continue
            checked += table.height
            for first, last, shift in found:
                stretches.append(ShiftedRows(rows["source"][0], int(places[first]), int(places[last]), shift))
                suspect[positions[first : last + 1]] = True
    total = int(placed["ok"].sum())
    if checked < total:
        reasons.append(f"{total - checked:,} of {total:,} ok rows were not checked")
    return LabelShift(checked, "; ".join(dict.fromkeys(reasons)), tuple(stretches), suspect)


def without_suspect(family: Family, rows: pl.DataFrame, device_of: DeviceOf = get_device) -> pl.DataFrame:
    """The rows whose labels are not suspect. This takes all rows of a file, in any order."""
    return rows.filter(~pl.Series(find_label_shift(family, rows, device_of).suspect, dtype=pl.Boolean))


def _check(family: Family, table: pl.DataFrame, device_of: DeviceOf) -> tuple[list[tuple[int, int, int]], str]:
    """The shifted stretches (first, last, shift) of one source on one device, or why it cannot be checked."""
    if table.height < FEWEST_ROWS:
        return [], f"a source has fewer than {FEWEST_ROWS} ok rows"
    groups = table.select(pl.struct([f"problem.{name}" for name in family.op.split_group]).rank("dense")).to_series()
    if groups.n_unique() < FEWEST_SHAPES:
        return [], f"a source has fewer than {FEWEST_SHAPES} different shapes to learn from"
    features = _features(family, table, device_of)
    if not features.shape[1]:
        return [], f"{family.id} has no features to learn from"
    labels = np.log(table["time_ns"].to_numpy())
    runs = table.select(pl.col("key").rle_id()).to_series().to_numpy().astype(np.int64)
    visits = np.cumsum(np.r_[0, np.diff(groups.to_numpy()) != 0])
    weights = _weights(runs, visits)
    trusted = np.ones(table.height, dtype=bool)
    found: list[tuple[int, int, int]] = []
    for _ in range(ROUNDS):
        predicted = _predict_held_out(features, labels, groups.to_numpy().astype(np.int64), trusted)
        costs = _costs(labels, predicted, trusted, runs, visits)
        found = _stretches(_likeliest_shifts(costs * weights[:, None]), costs, weights)
        now = np.ones(table.height, dtype=bool)
        for first, last, _ in found:
            now[first : last + 1] = False
        if now.mean() < FEWEST_TRUSTED:
            return [], "most labels of a source look shifted, so there is nothing to compare them with"
        if (now == trusted).all():
            break
        trusted = now
    return found, ""


def _weights(runs: Ints, visits: Ints) -> Floats:
    """How much each row says.

    A run of equal rows is one piece of evidence, because its rows share one prediction error. Of many rows of one shape, most
    are like another one (a tile twice as deep, another dtype) and err like it.
    """
    weights = 1.0 / np.bincount(runs)[runs]
    different = np.bincount(visits, weights=weights)[visits]
    return np.asarray(weights * np.minimum(1.0, np.sqrt(MOST_WITNESSES / different)))


def _features(family: Family, frame: pl.DataFrame, device_of: DeviceOf) -> Floats:
    try:
        device = device_of(frame["device"][0])
        program = family.features_on(device).program
    except NotFound:  # an unknown device has no hardware numbers; the rest still predicts
        names = [item.name for item in family.feature_program.symbols if item.name.startswith("hw.")]
        program = family.feature_program.bind(dict.fromkeys(names, 1.0))
    return program.frame(schema.symbol_columns(family, frame)).to_numpy()


def _predict_held_out(features: Floats, labels: Floats, groups: Ints, trusted: Flags) -> Floats:
    """Predict each row from rows far away in the file and of other shapes, fitted by absolute error.

    Stretches of the file are held out whole, with a margin as wide as the furthest shift: in a sorted sweep a
    neighbour's noise would otherwise be learned, and the label would seem to fit the neighbour.
    """
    import lightgbm

    rng = np.random.default_rng(0)
    count = len(labels)
    stretch = max(4 * FURTHEST_SHIFT, -(-count // MOST_STRETCHES))
    # Margins must not use up the file: a small file has fewer stretches, and a fold takes every FOLDS-th of them.
    numbers = np.arange(count) // stretch
    folds = numbers % min(FOLDS, int(numbers[-1]) + 1)
    predicted = np.empty_like(labels)
    drawn: dict[int, Ints] = {}
    for fold in np.unique(folds).tolist():
        held_out = folds == fold
        near = np.convolve(held_out, np.ones(2 * FURTHEST_SHIFT + 1), mode="same") > 0
        train = np.flatnonzero(trusted & ~near & ~np.isin(groups, groups[held_out]))
        drawn[fold] = np.sort(rng.choice(train, TRAINING_ROWS, replace=False)) if len(train) > TRAINING_ROWS else train

    def predict(fold: int) -> None:
        held_out, train = folds == fold, drawn[fold]
        if len(train) < FEWEST_ROWS // 2:
            predicted[held_out] = labels[held_out]  # too few rows are left to predict these
            return
        data = lightgbm.Dataset(features[train], labels[train], params={"verbose": -1})
        model = lightgbm.train(FITTED, data, num_boost_round=200)
        predicted[held_out] = np.asarray(model.predict(features[held_out], num_threads=1))

    # Each fold has one thread, so its result does not depend on how many run at a time.
    with ThreadPoolExecutor(min(len(drawn), os.cpu_count() or 1)) as pool:
        list(pool.map(predict, drawn))
    return predicted


@dataclass(frozen=True)
class _Errors:
    """How large prediction errors are: what the rows of a shape share, and what each has for itself."""

    shared: float
    own: float

    @classmethod
    def of(cls, errors: Floats, runs: Ints, visits: Ints) -> _Errors:
        """Estimated by medians, from the first row of each run of equal rows."""
        total = max(TO_SIGMA * float(np.median(np.abs(errors))), SMALLEST_ERROR)
        first = np.r_[True, runs[1:] != runs[:-1]]
        frame = pl.DataFrame({"error": errors[first], "visit": visits[first]})
        count = pl.len().over("visit")
        # The median of a few is close to each of them: their distances are widened by what that takes away.
        away = (pl.col("error") - pl.col("error").median().over("visit")).abs() * (count / (count - 1)).sqrt()
        inside = frame.filter(count >= FEWEST_IN_VISIT).select(away).to_series()
        if inside.len() < len(frame) / 2:  # most shapes have a row or two at a time: each error is its own
            return cls(0.0, total)
        middle = inside.median()
        assert isinstance(middle, float)
        own = min(max(TO_SIGMA * middle, SMALLEST_ERROR), total)
        return cls(float(np.sqrt(total**2 - own**2)), own)

    def after(self, count: Floats, total: Floats) -> tuple[Floats, Floats]:
        """The error to expect, and its deviation, after `count` errors of the same shape that add up to `total`."""
        known = self.own**2 + count * self.shared**2
        return self.shared**2 * total / known, self.own * np.sqrt(1.0 + self.shared**2 / known)


def _costs(labels: Floats, predicted: Floats, trusted: Flags, runs: Ints, visits: Ints) -> Floats:
    """How badly each label fits the row `shift` away, for every shift, in typical prediction errors."""
    errors = _Errors.of((labels - predicted)[trusted], runs[trusted], visits[trusted])
    count, widest = len(labels), FAR_OFF * np.hypot(errors.own, errors.shared)
    weights = 1.0 / np.bincount(runs)[runs]
    run_start, visit_start = (np.searchsorted(numbers, numbers) for numbers in (runs, visits))
    costs = np.full((count, 2 * FURTHEST_SHIFT + 1), WORST_FIT)
    for column, shift in enumerate(range(-FURTHEST_SHIFT, FURTHEST_SHIFT + 1)):
        rows = np.arange(max(0, -shift), min(count, count - shift))
        other = rows + shift
        error = labels[rows] - predicted[other]
        # What the labels before this one say of the shape that it would belong to.
        sums, counts = (np.r_[0.0, np.cumsum(x)] for x in (np.clip(error, -widest, widest) * weights[other], weights[other]))
        begin, end = (np.maximum(start[other] - other[0], 0) for start in (visit_start, run_start))
        expected, deviation = errors.after(counts[end] - counts[begin], sums[end] - sums[begin])
        costs[rows, column] = np.minimum(np.abs(error - expected) / deviation, WORST_FIT)
    return costs


def _likeliest_shifts(costs: Floats) -> Ints:
    """The cheapest path of shifts (Viterbi, with one price for every change)."""
    count, states = costs.shape
    if not _worth_changing(costs):
        return np.zeros(count, dtype=np.int64)
    total = costs[0] + np.where(np.arange(states) == FURTHEST_SHIFT, 0.0, SHIFT_CHANGE_COST)
    came_from = np.zeros((count, states), dtype=np.int16)
    same = np.arange(states)
    for row in range(1, count):
        best = int(total.argmin())
        changed = total[best] + SHIFT_CHANGE_COST
        stay = total <= changed
        came_from[row] = np.where(stay, same, best)
        total = np.where(stay, total, changed) + costs[row]
    path = np.empty(count, dtype=np.int64)
    state = int(total.argmin())
    for row in range(count - 1, -1, -1):
        path[row] = state - FURTHEST_SHIFT
        state = came_from[row, state]
    return path


def _worth_changing(costs: Floats) -> bool:
    """Whether any stretch of rows fits another shift so much better that the price of a change may be paid."""
    own = costs[:, FURTHEST_SHIFT]
    for other in costs.T:
        gained = np.r_[0.0, np.cumsum(own - other)]
        # Sums in another order than those of a path differ in their last bits.
        if (gained - np.minimum.accumulate(gained)).max() > SHIFT_CHANGE_COST - 1e-6:
            return True
    return False


def _stretches(path: Ints, costs: Floats, weights: Floats) -> list[tuple[int, int, int]]:
    """Runs of one shift whose rows clearly do not fit their own labels, widened to all rows that the shift affects."""
    edges = np.flatnonzero(np.diff(path)) + 1
    own = costs[:, FURTHEST_SHIFT]
    found: list[tuple[int, int, int]] = []
    for first, last in zip(np.r_[0, edges], np.r_[edges, len(path)] - 1, strict=True):
        shift = int(path[first])
        inside = slice(int(first), int(last) + 1)
        if shift == 0 or np.average(own[inside], weights=weights[inside]) < OWN_MISFIT:
            continue
        # Before labels that belong |shift| rows back there are as many labels that belong to no row, and before
        # those perhaps smaller shifts: rows that clearly do not fit their own labels.
        start = max(0, int(first) + min(shift, 0))
        while start < first and own[start] < 1.0:
            start += 1
        while start and first - start < 2 * abs(shift) and own[start - 1] > PLAIN_MISFIT:
            start -= 1
        # After the last row that decides, rows that fit both ways belong to the stretch as well.
        end = int(last)
        shifted = costs[:, FURTHEST_SHIFT + shift]
        while end + 1 < len(path) and end - last < abs(shift) and shifted[end + 1] <= own[end + 1] + 0.5:
            end += 1
        if found:
            start = max(start, found[-1][1] + 1)  # two stretches never share a row
        found.append((start, end, shift))
    return found
