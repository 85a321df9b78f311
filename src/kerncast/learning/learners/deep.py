"""`deep`: a residual network with embeddings, for times alone or for times and the order within a problem (torch).

Torch is needed only to train. A trained network is a few matrices in an .npz file, and `network` does the same
arithmetic on numpy arrays and on torch tensors, so predicting (and exporting) needs no torch.

Listwise, a second output ranks: its softmax over the configs of a problem, at `temperature`, should be
exp(-regret / temperature). It is in units of log time, like the first output once that is decoded, so the
two can be blended for choosing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from kerncast.core.arrays import Floats, Ints
from kerncast.core.op import Family
from kerncast.errors import InvalidValue, NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import (
    ADD,
    COPY,
    INPUT,
    RAW,
    A,
    B,
    D,
    Fitting,
    Learner,
    LearnerOptions,
    Network,
    Output,
    Target,
    inner_split,
    label_weights,
    read_arrays,
    refuse_other_shape,
    write_arrays,
)  # fmt: skip
from kerncast.learning.learners.growing import BLEND, TEMPERATURE, wanted_shares
from kerncast.learning.learners.networks import BATCH_SIZE, EPOCHS, HIDDEN, Scaling
from kerncast.learning.table import Table

Weights = dict[str, Any]

FILE = "deep.npz"
# Epochs without a better validation loss before it stops.
PATIENCE = 20
WEIGHT_DECAY = 1e-4
# One badly predicted problem in a batch must not undo what the others taught.
LARGEST_GRADIENT = 1.0
MOST_EMBEDDED = 8
# Rows predicted at a time, to limit memory.
PIECE = 65_536


class DeepOptions(LearnerOptions, frozen=True):
    """Knobs of `deep`."""

    hidden: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, description=HIDDEN)] = (128,)
    """Widths, one stage of the network each."""
    blocks: Annotated[int, Meta(ge=0, description="residual blocks in each stage")] = 2
    epochs: Annotated[int, Meta(ge=1, description=EPOCHS)] = 100
    batch_size: Annotated[int, Meta(ge=1, description=BATCH_SIZE)] = 512
    lr: Annotated[float, Meta(gt=0, le=1e6, description="learning rate")] = 2e-3
    loss: Annotated[Literal["pointwise", "listwise"], Meta(description="pointwise or listwise")] = "listwise"
    temperature: Annotated[float, Meta(gt=0, description=TEMPERATURE)] = 0.05
    blend: Annotated[float, Meta(ge=0, le=1, description=BLEND)] = 0.5
    """For a listwise network; a pointwise one has no ranking."""


class Deep(Learner):
    """Embeddings and scaled features, stages of residual blocks, one output for time and one for order."""

    kind = "deep"
    doc = "residual network with embeddings, pointwise or listwise loss (torch, an extra)"
    options_type = DeepOptions
    options: DeepOptions
    continues = True

    target_: Target
    scaling_: Scaling
    center_: Floats
    weights_: Weights

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        torch = _torch()
        options = self.options
        if base is not None:
            refuse_other_shape(base.options, options, ("hidden", "blocks", "loss"))
        training, aside = inner_split(table, fitting.seed)
        labels = fitting.target.encode(training.time_ns[training.ok], training.rows.take(training.ok))
        self.target_ = fitting.target
        self.scaling_ = Scaling.of(training.rows) if base is None else base.scaling_
        self.center_ = np.array([labels.mean(), labels.std() or 1.0]) if base is None else base.center_
        weights = initial_weights(self.scaling_, options, fitting.seed) if base is None else base.weights_
        with _alone(torch):
            self.weights_ = self._descend(torch, weights, training, aside, fitting)
        return self

    def _lesson(self, torch: Any, table: Table, fitting: Fitting) -> _Lesson:
        # Rows that failed have no time, but a listwise loss learns from them what not to choose.
        listwise = self.options.loss == "listwise"
        table = table if listwise else table.take(table.ok)
        ok = table.ok
        goal, worth = np.zeros(len(ok)), np.zeros(len(ok))
        goal[ok] = (fitting.target.encode(table.time_ns[ok], table.rows.take(ok)) - self.center_[0]) / self.center_[1]
        worth[ok] = label_weights(table.take(ok))
        worth /= max(worth.mean(), 1e-300)
        single = np.ascontiguousarray(np.stack([goal, worth, table.weight], axis=1))
        wanted = wanted_shares(table, self.options.temperature) if listwise else np.zeros(len(ok))
        inputs = torch.from_numpy(self.scaling_.apply(table.rows.features)).float()
        return _Lesson(torch, self.options, inputs, torch.from_numpy(single).float(), torch.from_numpy(wanted).float(), table)

    def _descend(self, torch: Any, weights: Weights, training: Table, aside: Table | None, fitting: Fitting) -> Weights:
        """Adam with a cosine schedule; keeps the weights with the best validation loss, or else the last ones."""
        options, rng = self.options, np.random.default_rng(fitting.seed)
        lesson = self._lesson(torch, training, fitting)
        judge = None if aside is None else self._lesson(torch, aside, fitting)
        network_of = layout(self.scaling_, options)
        live = {name: torch.from_numpy(value).float().requires_grad_() for name, value in weights.items()}
        optimizer = torch.optim.AdamW(list(live.values()), lr=options.lr, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
        best, kept, since = (np.inf if judge is None else judge.whole(network_of, live)), _copied(live), 0
        for epoch in range(options.epochs):
            for batch in lesson.batches(rng):
                optimizer.zero_grad()
                error = lesson.loss(network_of, live, batch)
                error.backward()
                torch.nn.utils.clip_grad_norm_(list(live.values()), LARGEST_GRADIENT)
                optimizer.step()
            schedule.step()
            fitting.progress.step("epochs", epoch + 1, options.epochs)
            loss = float(error.detach()) if judge is None else judge.whole(network_of, live)
            if not np.isfinite(loss):
                raise InvalidValue(f"the network diverged in epoch {epoch + 1}: use a smaller `lr` than {options.lr:g}")
            if judge is None or loss < best:
                best, kept, since = loss, _copied(live), 0
            elif (since := since + 1) >= PATIENCE:
                break
        return kept

    def outputs(self, rows: Rows) -> Floats:
        """The network's outputs for each row, in training units: one column, or two if it ranks."""
        shape = layout(self.scaling_, self.options)
        pieces = [rows.features[start : start + PIECE] for start in range(0, max(len(rows), 1), PIECE)]
        return np.concatenate([network(shape, self.weights_, self.scaling_.apply(piece)) for piece in pieces])

    def predict(self, rows: Rows) -> Output:
        raw = self.outputs(rows)
        target = raw[:, 0] * self.center_[1] + self.center_[0]
        if raw.shape[1] == 1:
            return Output(target)
        log_time = self.target_.log_time(target, rows)
        return Output(target, (1.0 - self.options.blend) * log_time + self.options.blend * raw[:, 1])

    def save(self, folder: Path) -> None:
        target = {"target": np.array(self.target_.name), "target_log": np.array(self.target_.log), "center": self.center_}
        scaling = {f"scaling.{name}": value for name, value in self.scaling_.arrays.items()}
        write_arrays(folder / FILE, {**target, **scaling, **{f"weights.{k}": v for k, v in self.weights_.items()}})

    @classmethod
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        learner, arrays = cls(options), read_arrays(folder / FILE)
        learner.target_ = Target(str(arrays["target"]), bool(arrays["target_log"]))
        learner.center_ = np.asarray(arrays["center"], np.float64)
        learner.scaling_ = Scaling(_under("scaling.", arrays))
        learner.weights_ = _under("weights.", arrays)
        return learner

    def size(self) -> dict[str, int]:
        return {"weights": sum(int(value.size) for value in self.weights_.values())}

    def lowered(self, family: Family, values: Collection[str]) -> Network:
        weights, shape, blend = self.weights_, layout(self.scaling_, self.options), self.options.blend
        outputs = int(np.asarray(weights["head"]).shape[1])
        middle, spread = (float(value) for value in self.center_)
        network = Network(self.scaling_, middle, spread, None if outputs == 1 else (1.0 - blend, blend))
        first = np.asarray(weights["plain"]).reshape(shape.plain, shape.widths[0])
        network.dense(INPUT, 0, first, weights["bias"], False, A)
        for place, (start, _) in enumerate(shape.categorical):
            network.dense(INPUT, start, weights[f"embedding{place}"], None, False, B)
            network.dense(B, 0, weights[f"mixing{place}"], None, False, D)
            network.move(ADD, D, shape.widths[0], A)
        for stage, columns in enumerate(shape.widths):
            if stage:
                network.dense(A, 0, weights[f"stage{stage}"], weights[f"stage{stage}_bias"], True, B)
                network.move(COPY, B, columns, A)
            for block in range(shape.blocks):
                name = f"block{stage}_{block}"
                network.dense(A, 0, weights[f"{name}_in"], weights[f"{name}_in_bias"], True, B)
                network.dense(B, 0, weights[f"{name}_out"], weights[f"{name}_out_bias"], True, D)
                network.move(ADD, D, columns, A)
        network.dense(A, 0, weights["head"], weights["head_bias"], True, RAW)
        return network


@dataclass(frozen=True)
class DeepShape:
    """The columns of each input, and the depth of the network."""

    plain: int
    categorical: tuple[tuple[int, int], ...]
    """Start and end (exclusive) of the columns of each categorical feature, one column per code."""
    widths: tuple[int, ...]
    blocks: int


def layout(scaling: Scaling, options: DeepOptions) -> DeepShape:
    """The shape of the network for these inputs and knobs."""
    codes = np.asarray(scaling.arrays["codes"])
    counts = (codes >= 0).sum(axis=1)
    plain = int((counts == 0).sum())
    ends = plain + np.cumsum(counts[counts > 0])
    slices = tuple((int(end - count), int(end)) for end, count in zip(ends, counts[counts > 0], strict=True))
    return DeepShape(plain, slices, options.hidden, options.blocks)


def network(shape: DeepShape, weights: Weights, inputs: Any) -> Any:
    """The outputs for scaled inputs; both arguments are numpy arrays, or both torch tensors."""
    values = inputs[:, : shape.plain] @ weights["plain"] + weights["bias"]
    for place, (start, stop) in enumerate(shape.categorical):
        # One column per code times a table of vectors: an embedding, which is zero for an unknown code.
        values = values + (inputs[:, start:stop] @ weights[f"embedding{place}"]) @ weights[f"mixing{place}"]
    for stage in range(len(shape.widths)):
        if stage:
            values = values.clip(min=0.0) @ weights[f"stage{stage}"] + weights[f"stage{stage}_bias"]
        for block in range(shape.blocks):
            name = f"block{stage}_{block}"
            inner = (values.clip(min=0.0) @ weights[f"{name}_in"] + weights[f"{name}_in_bias"]).clip(min=0.0)
            values = values + inner @ weights[f"{name}_out"] + weights[f"{name}_out_bias"]
    return values.clip(min=0.0) @ weights["head"] + weights["head_bias"]


def initial_weights(scaling: Scaling, options: DeepOptions, seed: int) -> Weights:
    """Initial weights that keep the variance from layer to layer; residual blocks start at zero."""
    rng, shape = np.random.default_rng(seed), layout(scaling, options)

    def dense(fan_in: int, fan_out: int) -> Floats:
        return np.asarray(rng.standard_normal((fan_in, fan_out)) * np.sqrt(2.0 / max(fan_in, 1)))

    first = shape.widths[0]
    weights: Weights = {"plain": dense(shape.plain, first), "bias": np.zeros(first)}
    for place, (start, stop) in enumerate(shape.categorical):
        size = min(MOST_EMBEDDED, stop - start)
        weights[f"embedding{place}"] = rng.standard_normal((stop - start, size))
        weights[f"mixing{place}"] = dense(size, first) / np.sqrt(max(len(shape.categorical), 1))
    for stage, width in enumerate(shape.widths):
        if stage:
            weights[f"stage{stage}"] = dense(shape.widths[stage - 1], width)
            weights[f"stage{stage}_bias"] = np.zeros(width)
        for block in range(shape.blocks):
            name = f"block{stage}_{block}"
            weights |= {f"{name}_in": dense(width, width), f"{name}_in_bias": np.zeros(width)}
            weights |= {f"{name}_out": np.zeros((width, width)), f"{name}_out_bias": np.zeros(width)}
    outputs = 2 if options.loss == "listwise" else 1
    return weights | {"head": dense(shape.widths[-1], outputs) * 0.1, "head_bias": np.zeros(outputs)}


@dataclass(frozen=True)
class _Lesson:
    """Rows as tensors, in batches, with the loss of a network on them."""

    torch: Any
    options: DeepOptions
    inputs: Any
    single: Any
    """The goal distribution, the weight of each row's time, and the weight of its problem."""
    wanted: Any
    table: Table

    @property
    def listwise(self) -> bool:
        return self.options.loss == "listwise"

    def batches(self, rng: np.random.Generator) -> Iterator[Ints]:
        """Rows in random order; whole problems stay together if the order within them is learned."""
        if not self.listwise:
            mixed = rng.permutation(len(self.inputs))
            yield from np.split(mixed, range(self.options.batch_size, len(mixed), self.options.batch_size))
            return
        trials = self.table.trials
        problems = np.split(trials.order, trials.starts[1:])
        mixed = rng.permutation(len(problems))
        # A problem belongs to the batch that its first row falls in.
        rows_before = np.cumsum([0, *(len(problems[number]) for number in mixed[:-1])])
        _, firsts = np.unique(rows_before // self.options.batch_size, return_index=True)
        for part in np.split(mixed, firsts[1:]):
            yield np.concatenate([problems[number] for number in part])

    def loss(self, shape: DeepShape, weights: Weights, batch: Ints | None = None) -> Any:
        """Squared error of the target plus the cross-entropy of the order."""
        rows = slice(None) if batch is None else self.torch.from_numpy(batch)
        said, single = network(shape, weights, self.inputs[rows]), self.single[rows]
        loss = (single[:, 1] * (said[:, 0] - single[:, 0]) ** 2).mean()
        if not self.listwise:
            return loss
        problem = self.table.problem if batch is None else self.table.problem[batch]
        return loss + self._order_loss(said[:, 1], self.wanted[rows], single[:, 2], problem)

    def _order_loss(self, ranked: Any, wanted: Any, worth: Any, problem: Ints) -> Any:
        _, dense = np.unique(problem, return_inverse=True)
        place, count = self.torch.from_numpy(dense.astype(np.int64)), int(dense.max()) + 1
        logits = -ranked / self.options.temperature
        highest = self.torch.full((count,), -np.inf).scatter_reduce(0, place, logits.detach(), "amax")
        shifted = logits - highest[place]
        total = self.torch.zeros(count).index_add(0, place, shifted.exp())
        entropy = -(worth * wanted * (shifted - total.log()[place])).sum() / count
        # In units of log time, as the other half is in units of the target.
        return self.options.temperature * entropy

    def whole(self, shape: DeepShape, weights: Weights) -> float:
        """The loss on all rows."""
        with self.torch.no_grad():
            return float(self.loss(shape, weights))


def _copied(live: Weights) -> Weights:
    return {name: value.detach().numpy().astype(np.float64) for name, value in live.items()}


def _under(prefix: str, arrays: dict[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise NotFound.package("training the model deep (predicting does not)", "torch", "torch") from error
    return torch


@contextmanager
def _alone(torch: Any) -> Iterator[None]:
    """Use one thread: sums then have a fixed order, and the same seed always gives the same bytes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
