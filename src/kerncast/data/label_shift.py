"""Labels that fit a neighbouring row better than their own: the mark of a join by position.

A robust model, fitted on other problems, predicts every row. The most likely path of shifts through the
file is then found (how many rows away does each label belong?), where changing the shift costs as much as
several rows that plainly do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.data import schema
from kerncast.devices import get as get_device
from kerncast.errors import NotFound
from kerncast.op import Family

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FURTHEST_SHIFT = 32
# In units of the typical prediction error: what a row may count for at most, and what a change of shift costs.
WORST_FIT = 4.0
SHIFT_CHANGE_COST = 30.0
SMALLEST_ERROR = 0.02
FEWEST_ROWS = 100
# Beyond these the check samples (training) or stops (rows looked at), and says so.
TRAINING_ROWS = 50_000
CHECKED_ROWS = 300_000
FOLDS = 5
ROUNDS = 3


@dataclass(frozen=True)
class ShiftedRows:
    """A stretch of rows whose labels belong `shift` rows further on."""

    first: int
    last: int
    shift: int


@dataclass(frozen=True)
class LabelShift:
    """The stretches found, and which rows (by position in the frame) are suspect."""

    checked_rows: int
    reason: str
    stretches: tuple[ShiftedRows, ...]
    suspect: npt.NDArray[np.bool_]


def find_label_shift(family: Family, rows: pl.DataFrame) -> LabelShift:
    """Look for shifted labels among the ok rows, in the order of their source."""
    suspect = np.zeros(rows.height, dtype=bool)
    ordered = _in_source_order(rows)
    if ordered is None:
        return LabelShift(0, "the rows carry neither a source line nor an order", (), suspect)
    if len(ordered) < FEWEST_ROWS:
        return LabelShift(0, f"fewer than {FEWEST_ROWS} ok rows", (), suspect)
    ordered = ordered[:CHECKED_ROWS]
    frame = rows[ordered]
    runs = frame.select(pl.col("key").rle_id()).to_series().to_numpy().astype(np.int64)
    groups = frame.select(pl.struct([f"problem.{name}" for name in family.op.split_group]).rank("dense")).to_series()
    if groups.n_unique() < 2 * FOLDS:
        return LabelShift(0, f"fewer than {2 * FOLDS} different shapes to learn from", (), suspect)
    features = _features(family, frame)
    labels = np.log(frame["time_ns"].to_numpy())
    trusted = np.ones(len(ordered), dtype=bool)
    stretches: list[ShiftedRows] = []
    for _ in range(ROUNDS):
        predicted = _predict_held_out(features, labels, groups.to_numpy().astype(np.int64), trusted)
        costs = _costs(labels, predicted, trusted)
        # One run of equal rows is one piece of evidence: its prediction errors are one error.
        weights = 1.0 / np.bincount(runs)[runs]
        stretches = _stretches(_likeliest_shifts(costs * weights[:, None]), costs)
        now = np.ones(len(ordered), dtype=bool)
        for stretch in stretches:
            now[stretch.first : stretch.last + 1] = False
        if (now == trusted).all():
            break
        trusted = now
    suspect[ordered[~trusted]] = True
    reason = "" if len(ordered) == int((rows["status"] == "ok").sum()) else f"only the first {len(ordered):,} rows were checked"
    return LabelShift(len(ordered), reason, tuple(stretches), suspect)


def _in_source_order(rows: pl.DataFrame) -> Ints | None:
    """Positions of the ok rows in the order in which they were written down."""
    indexed = rows.with_row_index("__row").filter(pl.col("status") == "ok")
    for columns in (["source", "source_line"], ["run_id", "order"]):
        if indexed.height and indexed[columns[1]].null_count() == 0:
            return indexed.sort(columns, maintain_order=True)["__row"].to_numpy().astype(np.int64)
    return None


def _features(family: Family, frame: pl.DataFrame) -> Floats:
    try:
        device = get_device(frame["device"][0])
        program = family.features_on(device).program
    except NotFound:  # an unknown device has no hardware numbers; the rest still predicts
        names = [item.name for item in family.feature_program.symbols if item.name.startswith("hw.")]
        program = family.feature_program.bind(dict.fromkeys(names, 1.0))
    return program.frame(schema.symbol_columns(family, frame)).to_numpy()


def _predict_held_out(features: Floats, labels: Floats, groups: Ints, trusted: npt.NDArray[np.bool_]) -> Floats:
    """Each row as predicted from other shapes; absolute error, so that the shifted rows do not steer it."""
    import lightgbm

    rng = np.random.default_rng(0)
    shapes = np.unique(groups)
    fold_of = dict(zip(shapes, rng.permutation(len(shapes)) % FOLDS, strict=True))
    folds = np.array([fold_of[group] for group in groups])
    predicted = np.empty_like(labels)
    params = {
        "objective": "regression_l1", "num_leaves": 31, "learning_rate": 0.1, "verbose": -1, "seed": 0,
        "deterministic": True, "force_row_wise": True, "num_threads": 2,
    }  # fmt: skip
    for fold in range(FOLDS):
        train = np.flatnonzero(trusted & (folds != fold))
        if len(train) > TRAINING_ROWS:
            train = np.sort(rng.choice(train, TRAINING_ROWS, replace=False))
        data = lightgbm.Dataset(features[train], labels[train], params={"verbose": -1})
        model = lightgbm.train(params, data, num_boost_round=200)
        predicted[folds == fold] = np.asarray(model.predict(features[folds == fold]))
    return predicted


def _costs(labels: Floats, predicted: Floats, trusted: npt.NDArray[np.bool_]) -> Floats:
    """How badly each label fits the row `shift` away, for every shift, in typical prediction errors."""
    error = max(1.4826 * float(np.median(np.abs(labels - predicted)[trusted])), SMALLEST_ERROR)
    count = len(labels)
    costs = np.full((count, 2 * FURTHEST_SHIFT + 1), WORST_FIT)
    for column, shift in enumerate(range(-FURTHEST_SHIFT, FURTHEST_SHIFT + 1)):
        rows = np.arange(max(0, -shift), min(count, count - shift))
        costs[rows, column] = np.minimum(np.abs(labels[rows] - predicted[rows + shift]) / error, WORST_FIT)
    return costs


def _likeliest_shifts(costs: Floats) -> Ints:
    """The cheapest path of shifts (Viterbi, with one price for every change)."""
    count, states = costs.shape
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


def _stretches(path: Ints, costs: Floats) -> list[ShiftedRows]:
    """Runs of one shift, their ends widened over the rows that a slip of that size must have touched."""
    edges = np.flatnonzero(np.diff(path)) + 1
    own = costs[:, FURTHEST_SHIFT]
    found = []
    for first, last in zip(np.r_[0, edges], np.r_[edges, len(path)] - 1, strict=True):
        shift = int(path[first])
        if shift == 0:
            continue
        # Labels that belong |shift| rows back were preceded by as many that belong to no row here, and those
        # perhaps by smaller slips on the way: rows that plainly do not fit themselves.
        start = max(0, int(first) + min(shift, 0))
        while start and first - start < 2 * abs(shift) and own[start - 1] > WORST_FIT / 2:
            start -= 1
        # After the last row that decides, rows that fit both ways belong to the stretch as well.
        end = int(last)
        shifted = costs[:, FURTHEST_SHIFT + shift]
        while end + 1 < len(path) and end - last < abs(shift) and shifted[end + 1] <= own[end + 1] + 0.5:
            end += 1
        found.append(ShiftedRows(start, end, shift))
    return found
