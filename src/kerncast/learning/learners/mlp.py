"""`mlp`: a standard scaler and a small multi-layer perceptron (scikit-learn, Adam), stopped on groups set aside."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from msgspec import Meta

from kerncast.core.arrays import Floats
from kerncast.core.io.atomic import build_directory
from kerncast.core.op import Family
from kerncast.errors import InvalidValue, NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import (
    INPUT,
    RAW,
    A,
    B,
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
from kerncast.learning.learners.kinds import options_of
from kerncast.learning.learners.networks import BATCH_SIZE, EPOCHS, HIDDEN, CsvNetwork, Scaling, write_network
from kerncast.learning.table import Table

# Epochs without a better validation error before it stops.
PATIENCE = 15


class MlpOptions(LearnerOptions, frozen=True):
    """Knobs of `mlp`."""

    hidden: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(description=HIDDEN)] = (100, 50)
    epochs: Annotated[int, Meta(ge=1, description=EPOCHS)] = 200
    batch_size: Annotated[int, Meta(ge=1, description=BATCH_SIZE)] = 256
    lr: Annotated[float, Meta(gt=0, description="learning rate")] = 1e-3


class Mlp(Learner):
    """A network of a few dense layers with rectifiers."""

    kind = "mlp"
    doc = "standard scaler and a small neural network (scikit-learn)"
    options_type = MlpOptions
    options: MlpOptions
    continues = True
    reads_csv = True

    scaling_: Scaling
    center_: Floats
    layers_: list[tuple[Floats, Floats]]

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        if base is not None:
            refuse_other_shape(base.options, self.options, ("hidden",))
        training, aside = inner_split(table.take(table.ok), fitting.seed)
        labels = fitting.target.encode(training.time_ns, training.rows)
        self.scaling_ = Scaling.of(training.rows) if base is None else base.scaling_
        self.center_ = np.array([labels.mean(), labels.std() or 1.0]) if base is None else base.center_
        inputs, goal = self.scaling_.apply(training.rows.features), (labels - self.center_[0]) / self.center_[1]
        network = self._network(inputs, goal, fitting.seed, base)
        weights = label_weights(training)
        self.layers_ = self._copy(network)
        best, since = (np.inf, 0) if aside is None or base is None else (self._error(network, aside, fitting), 0)
        for epoch in range(self.options.epochs):
            self._pass(network, inputs, goal, weights)
            fitting.progress.step("epochs", epoch + 1, self.options.epochs)
            error = -np.inf if aside is None else self._error(network, aside, fitting)
            best, since = (error, 0) if aside is None or error < best else (best, since + 1)
            if since == 0:
                self.layers_ = self._copy(network)
            elif since >= PATIENCE:
                break
        return self

    def _network(self, inputs: Floats, goal: Floats, seed: int, base: Self | None) -> Any:
        """A network with initial weights: random ones, or those of a base."""
        try:
            from sklearn.neural_network import MLPRegressor
        except ImportError as error:
            raise NotFound.package("training the model mlp", "scikit-learn", "train") from error

        size = min(self.options.batch_size, len(goal))
        network = MLPRegressor(
            hidden_layer_sizes=self.options.hidden,
            batch_size=size,
            learning_rate_init=self.options.lr,
            # A generator, not a seed: with a seed every epoch would be shuffled alike.
            random_state=np.random.RandomState(seed),
            max_iter=1,
        )
        if base is not None:
            # Only a fit creates the layers. Replacing the weights and the optimizer undoes its one step.
            self._pass(network, inputs[:size], goal[:size], np.ones(size))
            # In place: Adam refers to them.
            for own, bias, (weights, intercepts) in zip(network.coefs_, network.intercepts_, base.layers_, strict=True):
                own[...], bias[...] = weights, intercepts
            del network._optimizer
        return network

    def _pass(self, network: Any, inputs: Floats, goal: Floats, weights: Floats) -> None:
        try:
            with warnings.catch_warnings():
                # scikit-learn turns Ctrl-C into a warning and continues.
                warnings.filterwarnings("error", "Training interrupted")
                network.partial_fit(inputs, goal, sample_weight=weights)
        except UserWarning as warning:
            raise KeyboardInterrupt from warning
        except ValueError as error:  # weights that are no longer finite
            raise InvalidValue(f"the network diverged ({error}): use a smaller `lr` than {self.options.lr:g}") from error

    @staticmethod
    def _copy(network: Any) -> list[tuple[Floats, Floats]]:
        if not hasattr(network, "coefs_"):
            return []
        return [(w.copy(), b.copy()) for w, b in zip(network.coefs_, network.intercepts_, strict=True)]

    def _error(self, network: Any, aside: Table, fitting: Fitting) -> float:
        output = forward(self._copy(network), self.scaling_.apply(aside.rows.features)) * self.center_[1] + self.center_[0]
        errors = output - fitting.target.encode(aside.time_ns, aside.rows)
        return float(np.average(errors**2, weights=label_weights(aside)))

    def predict(self, rows: Rows) -> Output:
        return Output(forward(self.layers_, self.scaling_.apply(rows.features)) * self.center_[1] + self.center_[0])

    def save(self, folder: Path) -> None:
        layers = {f"{kind}{i}": part for i, layer in enumerate(self.layers_) for kind, part in zip("wb", layer, strict=True)}
        write_arrays(folder / "mlp.npz", {**self.scaling_.arrays, "center": self.center_, **layers})

    @classmethod
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        learner = cls(options)
        arrays = read_arrays(folder / "mlp.npz")
        learner.center_ = arrays.pop("center").astype(np.float64)
        count = sum(name[1:].isdigit() for name in arrays) // 2
        learner.layers_ = [(np.asarray(arrays.pop(f"w{i}")), np.asarray(arrays.pop(f"b{i}"))) for i in range(count)]
        learner.scaling_ = Scaling(arrays)
        return learner

    def write_csv(self, out: Path, names: Sequence[str], target: Target) -> bool:
        parts = self.scaling_, self.layers_, self.center_
        build_directory(out, lambda folder: write_network(folder, *parts, names, target))
        return True

    @classmethod
    def from_csv(cls, network: CsvNetwork, rows: Rows, knobs: dict[str, Any]) -> Self:
        """A network that is given, as a learner of rows that have exactly its features."""
        hidden = tuple(len(biases) for _, biases in network.layers[:-1])
        if "hidden" in knobs and tuple(knobs["hidden"]) != hidden:
            raise InvalidValue(f"`hidden` is {knobs['hidden']}, but the network in {network.folder} has {hidden}: leave it out")
        learner = cls(options_of(cls, {**knobs, "hidden": hidden}))
        learner.scaling_, learner.center_ = network.scaling(rows), network.center
        learner.layers_ = list(network.layers)
        return learner

    def size(self) -> dict[str, int]:
        return {"weights": sum(w.size + b.size for w, b in self.layers_)}

    def lowered(self, family: Family, values: Collection[str]) -> Network:
        middle, spread = (float(value) for value in self.center_)
        network = Network(self.scaling_, middle, spread)
        source, target = INPUT, A
        for number, (weights, bias) in enumerate(self.layers_):
            last = number == len(self.layers_) - 1
            network.dense(source, 0, weights, bias, number > 0, RAW if last else target)
            source, target = target, B if target == A else A
        return network


def forward(layers: list[tuple[Floats, Floats]], inputs: Floats) -> Floats:
    """The network's output, one number per row."""
    values = inputs
    for place, (weights, bias) in enumerate(layers):
        values = values @ weights + bias
        if place < len(layers) - 1:
            values = np.maximum(values, 0.0)
    return values[:, 0]
