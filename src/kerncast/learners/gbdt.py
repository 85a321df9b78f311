"""`gbdt`: gradient-boosted trees (LightGBM), one forest for times and one for order. The default.

The `time` forest regresses the target. The `rank` forest is asked only for the order within a problem: its
scores, through a softmax, should be the distribution exp(-regret / temperature) over the problem's configs,
so configs within the noise of the best share the weight and slow ones do not matter. The two are blended for
choosing. Where a vendor's library is one of the candidates, `library` trees have their own say about it. Where attempts
failed, a `valid` forest learns which, and what it believes to fail is chosen last.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from kerncast.errors import BadFile, InvalidValue
from kerncast.learners.contract import Fitting, Learner, Options, Output, inner_split, label_weights, read_arrays, write_arrays
from kerncast.learners.library_choice import grow_library_trees
from kerncast.learners.ranking import wanted_shares
from kerncast.learners.target import Target
from kerncast.learners.trees import Tree, as_arrays, from_arrays, sum_of
from kerncast.tables.feature_rows import Rows
from kerncast.tables.table import Table

if TYPE_CHECKING:
    from lightgbm import Booster

Floats = npt.NDArray[np.float64]

FORESTS = ("time", "rank", "valid")
FOREST_TITLES = {"time": "times", "rank": "order", "valid": "failures"}
TARGET = "target.npz"
LIBRARY = "library.npz"
# What is more likely to fail than not (negative log odds of working) goes behind everything else.
LIKELY_TO_FAIL = 0.0
BEHIND = 1e3
# Fewer failures than this teach nothing that holds on another problem.
FEWEST_FAILURES = 20
PATIENCE = 30
# Below this a leaf of twenty rows would be a large part of them.
FEW_ROWS = 1000
# On fewer rows threads wait for each other more than they work, the more so beside another busy process.
WORTH_THREADS = 20_000
# Order turns on few rows, those near the top of each problem, so its leaves may be small; a leaf needs the curvature
# of about one undecided config. Bagging makes the forest grown on everything differ little from those of the folds.
RANKING = {"min_data_in_leaf": 10, "min_sum_hessian_in_leaf": 1.0, "bagging_fraction": 0.8, "bagging_freq": 1}
REGRESSING = {"min_data_in_leaf": 20, "feature_fraction": 0.8}
TIMES_ALONE = {"min_data_in_leaf": 5, "bagging_fraction": 0.8, "bagging_freq": 1}
# Many features say nearly the same (the waves of ten tiles): each tree sees so many of them, but not a smaller share
# than the first, lest it miss the few that matter, nor a larger one than the second, lest all trees be alike.
FEATURES_SEEN, SHARE_SEEN = 50, (0.3, 0.8)


def _resolved(options: GbdtOptions, table: Table) -> GbdtOptions:
    """The knobs that were left open, decided by the shape of the data."""
    choosing = table.trials.choosing
    return msgspec.structs.replace(
        options,
        blend=blend_for(len(np.unique(table.group))) if options.blend is None else options.blend,
        trees=options.trees or (300 if choosing else 700),
        leaves=options.leaves or (63 if choosing else 127),
        lr=options.lr or (0.08 if choosing else 0.05),
        bags=options.bags or (bags_for(len(table.ok)) if choosing else 1),
    )


def bags_for(rows: int) -> int:
    """Four forests for the order up to 20,000 rows, three up to 30,000, two up to 60,000, then one.

    With few problems one forest is a matter of luck, and more are cheap. Measured on CPU GEMMs: of the best speed, two
    choose about 0.5 % better than one with 51,000 rows of 300 problems, four 0.2 to 1 % with 7,000 of 44.
    """
    return 1 + min(3, 60_000 // max(rows, 1))


def blend_for(groups: int) -> float:
    """60 % for the order at 50 groups of problems, 93 % at 500, 99 % at 5,000.

    Measured: with 35 groups of CPU GEMMs 60 % chooses best, with 570 of A100 matmuls 95 to 100 %.
    """
    return float(1.0 - 0.4 * min(1.0, (50.0 / groups) ** 0.75))


class GbdtOptions(Options, frozen=True):
    """Knobs of `gbdt`."""

    trees: Annotated[int, Meta(ge=1)] | None = None
    """At most so many in each forest; fewer where the groups set aside say so. 300, or 700 where there is nothing to
    choose: then one row is predicted at a time, and a large forest costs nothing."""
    leaves: Annotated[int, Meta(ge=2)] | None = None
    """63, or 127 where there is nothing to choose."""
    bags: Annotated[int, Meta(ge=1)] | None = None
    """Forests for the order, or for times where there is nothing to choose, each grown on other samples of the rows;
    their mean is what counts. By default 1, or up to 4 where there are few rows to learn an order from."""
    lr: Annotated[float, Meta(gt=0, le=1)] | None = None
    """0.08, or 0.05 where there is nothing to choose."""
    temperature: Annotated[float, Meta(gt=0)] = 0.02
    """Regret (log time over the best) at which a config's weight in the ranking has fallen to 1/e."""
    blend: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of the ranking forests in what is chosen by; 0 chooses by predicted time alone. By default it grows
    with the number of groups: order is learned from few rows of each problem, so it needs more problems than times."""
    library_trees: Annotated[int, Meta(ge=0)] = 100
    """Trees that judge the vendor's library where it is a candidate; 0 leaves it to the other forests."""


class Gbdt(Learner):
    """Forests for time, order and validity."""

    kind = "gbdt"
    doc = "gradient-boosted trees: one forest for times, one for order within a problem (LightGBM)"
    options_type = GbdtOptions
    continues = True
    library_: tuple[Tree, ...] = ()

    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        assert isinstance(self.options, GbdtOptions)
        self.options = _resolved(self.options, table)
        self.names_, self.target_ = table.rows.names, fitting.target
        # What the base knew of failures or of order stays known where the new data do not speak of it.
        self.forests_: dict[str, list[Booster]] = {} if base is None else dict(base.forests_)
        alone = not table.trials.choosing
        jobs: dict[str, Callable[[Table], _Task]] = {"time": lambda part: _time_task(part, fitting, alone)}
        if self.options.blend != 0 and table.trials.choosing:
            jobs["rank"] = lambda part: _rank_task(part, self._temperature)
        if FEWEST_FAILURES <= int((~table.ok).sum()) < len(table.ok):
            jobs["valid"] = _valid_task
        trees, leaves, lr, most = self.options.trees, self.options.leaves, self.options.lr, self.options.bags
        assert trees is not None  # decided above
        assert most is not None
        assert leaves is not None
        assert lr is not None
        bags = {"time": most if alone else 1, "rank": most, "valid": 1}
        grower = _Grower(trees, leaves, lr, fitting, sum(1 + bags[name] for name in jobs))
        training, aside = inner_split(table, fitting.seed)
        for name, task in jobs.items():
            old: list[Booster | None] = [*self.forests_.get(name, []), *[None] * most]
            rounds = trees if aside is None else grower.rounds(name, task(training), task(aside), old[0])
            # Grown again on everything: what was set aside is worth more as data than as a judge.
            whole = task(table)
            self.forests_[name] = [grower.grow(name, whole, rounds, bag, old[bag]) for bag in range(bags[name])]
        self.library_ = grow_library_trees(table, self.options.library_trees, fitting.seed)
        if not self.library_ and base is not None and self.options.library_trees:
            # Trees that are not boosted cannot be gone on with: a base's stay where the new data cannot replace them.
            self.library_ = base.library_
        return self

    @property
    def _temperature(self) -> float:
        assert isinstance(self.options, GbdtOptions)
        return self.options.temperature

    def predict(self, rows: Rows) -> Output:
        raw = {
            name: np.asarray(np.mean([forest.predict(rows.features, raw_score=True) for forest in bag], axis=0))
            for name, bag in self.forests_.items()
        }
        if self.library_:
            raw["library"] = sum_of(self.library_, rows.features)
        if raw.keys() == {"time"}:
            return Output(raw["time"])
        return Output(raw["time"], self.combine(raw, self.target_.log_time(raw["time"], rows)))

    def combine(self, raw: dict[str, Floats], log_time: Floats) -> Floats:
        """What is chosen by, from the outputs of the forests: low is fast."""
        assert isinstance(self.options, GbdtOptions)
        score = log_time
        if "rank" in raw:
            assert self.options.blend is not None
            # Logits times the temperature are log times up to a constant, so both parts speak of regret.
            score = (1.0 - self.options.blend) * score - self.options.blend * self.options.temperature * raw["rank"]
        if "library" in raw:
            score = score + raw["library"]
        if "valid" in raw:
            score = score + np.where(raw["valid"] < LIKELY_TO_FAIL, BEHIND, 0.0)
        return score

    def save(self, folder: Path) -> None:
        for name, bag in self.forests_.items():
            for number, forest in enumerate(bag):
                # The number of threads is written into the text; it changes nothing else.
                text = re.sub(r"\[num_threads: \d+\]", "[num_threads: 0]", forest.model_to_string(num_iteration=-1))
                (folder / f"{name}.{number}.lgbm.gz").write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
        if self.library_:
            write_arrays(folder / LIBRARY, as_arrays(self.library_))
        write_arrays(folder / TARGET, {"target": np.array(self.target_.name), "log": np.array(self.target_.log)})

    @classmethod
    def load(cls, folder: Path, options: Options) -> Self:
        learner = cls(options)
        target = read_arrays(folder / TARGET)
        learner.target_ = Target(str(target["target"]), bool(target["log"]))
        learner.forests_ = {}
        for name in FORESTS:
            files = sorted(folder.glob(f"{name}.*.lgbm.gz"))
            if files:
                learner.forests_[name] = [_read_forest(file) for file in files]
        if "time" not in learner.forests_:
            raise BadFile(f"{folder} has no time.0.lgbm.gz: train the model again, or restore the file")
        if (folder / LIBRARY).exists():
            try:
                learner.library_ = from_arrays(read_arrays(folder / LIBRARY))
            except InvalidValue as error:
                raise BadFile(f"{folder / LIBRARY} is damaged ({error}): train the model again, or restore the file") from error
        learner.names_ = tuple(learner.forests_["time"][0].feature_name())
        return learner

    def importances(self) -> dict[str, float]:
        gains = np.zeros(len(self.names_))
        for name in ("time", "rank"):
            for forest in self.forests_.get(name, []):
                gain = np.asarray(forest.feature_importance("gain"), dtype=np.float64)
                gains += gain / max(gain.sum(), 1e-300)
        return dict(zip(self.names_, (gains / max(gains.sum(), 1e-300)).tolist(), strict=True))

    def size(self) -> dict[str, int]:
        grown = {f"{name}_trees": sum(forest.num_trees() for forest in bag) for name, bag in self.forests_.items()}
        return grown | ({"library_trees": len(self.library_)} if self.library_ else {})


def _read_forest(file: Path) -> Booster:
    from lightgbm import Booster
    from lightgbm.basic import LightGBMError

    try:
        return Booster(model_str=gzip.decompress(file.read_bytes()).decode())
    except (OSError, EOFError, UnicodeDecodeError, LightGBMError) as error:
        raise BadFile(f"{file} is damaged ({error}): train the model again, or restore the file") from error


@dataclass(frozen=True)
class _Task:
    """What one forest is grown on."""

    features: Floats
    names: tuple[str, ...]
    labels: Floats
    weights: Floats | None
    objective: str
    growing: dict[str, Any]
    """How its trees are grown, as LightGBM calls it."""
    ranking: _Ranking | None = None
    """Gradients of its own in place of LightGBM's objective."""

    def dataset(self, reference: Any = None) -> Any:
        import lightgbm

        # Of few rows LightGBM would drop every feature that cannot fill two leaves, and then refuse to go on.
        few = len(self.labels) < FEW_ROWS
        own = {"verbosity": -1, **({"feature_pre_filter": False} if few else {})}
        return lightgbm.Dataset(
            self.features,
            self.labels,
            weight=self.weights,
            feature_name=list(self.names),
            reference=reference,
            free_raw_data=False,
            params=own if reference is None else dict(reference.params),
        )


def _time_task(table: Table, fitting: Fitting, alone: bool) -> _Task:
    ok = table.take(table.ok)
    labels = fitting.target.encode(ok.time_ns, ok.rows)
    growing: dict[str, Any] = REGRESSING
    if alone:
        growing = {**TIMES_ALONE, "feature_fraction": float(np.clip(FEATURES_SEEN / len(table.rows.names), *SHARE_SEEN))}
    return _Task(ok.rows.features, table.rows.names, labels, label_weights(ok), "regression", growing)


def _rank_task(table: Table, temperature: float) -> _Task:
    labels = np.zeros(len(table.problem))
    return _Task(table.rows.features, table.rows.names, labels, None, "none", RANKING, _Ranking(table, temperature))


def _valid_task(table: Table) -> _Task:
    return _Task(table.rows.features, table.rows.names, table.ok.astype(np.float64), None, "binary", REGRESSING)


class _Ranking:
    """Soft cross-entropy between the scores of each problem and what its measured times want."""

    def __init__(self, table: Table, temperature: float) -> None:
        trials = table.trials
        self.order, self.starts = trials.order, trials.starts
        self.counts = np.diff(np.r_[self.starts, len(self.order)])
        self.wanted = wanted_shares(table, temperature)[self.order]
        self.per_row = np.repeat(self.counts, self.counts).astype(np.float64)
        # A problem on which nothing worked has no order.
        self.weight = np.where(np.repeat(trials.solvable, self.counts), table.weight[self.order], 0.0)

    def _believed(self, raw: Floats) -> Floats:
        scores = raw[self.order]
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, self.starts), self.counts))
        return np.asarray(powers / np.repeat(np.add.reduceat(powers, self.starts), self.counts))

    def gradients(self, raw: Floats, _: Any) -> tuple[Floats, Floats]:
        """First and second derivatives by score, as LightGBM wants them."""
        believed = self._believed(raw)
        gradient, curvature = np.zeros(len(raw)), np.zeros(len(raw))
        # Probabilities shrink with the number of configs; scaled by it, gradients keep their size.
        scale = self.weight * self.per_row
        gradient[self.order] = scale * (believed - self.wanted)
        curvature[self.order] = np.maximum(scale * np.maximum(believed * (1.0 - believed), 1e-3), 1e-6)
        return gradient, curvature

    def error(self, raw: Floats, _: Any) -> tuple[str, float, bool]:
        """The cross-entropy per problem, for early stopping: smaller is better."""
        logs = np.log(np.maximum(self._believed(raw), 1e-300))
        return "cross_entropy", float(-(self.wanted * logs).sum() / len(self.starts)), False


@dataclass
class _Grower:
    """Grows the forests one by one, telling how far it is."""

    trees: int
    leaves: int
    lr: float
    fitting: Fitting
    forests: int
    grown: int = 0

    def _parameters(self, task: _Task, bag: int) -> dict[str, Any]:
        return {
            "objective": task.ranking.gradients if task.ranking is not None else task.objective,
            "metric": "None" if task.ranking is not None else "",
            "learning_rate": self.lr,
            "num_leaves": self.leaves,
            "lambda_l2": 1.0,
            **task.growing,
            **({"min_data_in_leaf": max(1, len(task.labels) // 100)} if len(task.labels) < FEW_ROWS else {}),
            "seed": self.fitting.seed + bag,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": self.fitting.threads or (1 if len(task.labels) < WORTH_THREADS else 0),
            "verbosity": -1,
        }

    def rounds(self, name: str, task: _Task, judge: _Task, base: Booster | None) -> int:
        """How many trees the groups set aside want."""
        import lightgbm

        data = task.dataset()
        forest = lightgbm.train(
            self._parameters(task, 0),
            data,
            self.trees,
            valid_sets=[judge.dataset(data)],
            feval=None if judge.ranking is None else judge.ranking.error,
            init_model=base,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), self._tell(name, self.trees)],
        )
        self.grown += 1
        # Of a continued forest, LightGBM counts the trees of its base too.
        before = 0 if base is None else base.num_trees()
        best = forest.best_iteration
        return max(1, best - before if best > before else best)

    def grow(self, name: str, task: _Task, rounds: int, bag: int, base: Booster | None) -> Booster:
        """One forest on all rows, going on from `base`; those of a bag differ in the rows that each tree looks at."""
        import lightgbm

        parameters = self._parameters(task, bag)
        forest = lightgbm.train(parameters, task.dataset(), rounds, init_model=base, callbacks=[self._tell(name, rounds)])
        self.grown += 1
        return forest

    def _tell(self, name: str, rounds: int) -> Callable[[Any], None]:
        def callback(env: Any) -> None:
            share = (env.iteration + 1 - env.begin_iteration) / rounds
            done = round((self.grown + min(1.0, share)) * self.trees)
            self.fitting.step(f"trees for {FOREST_TITLES[name]}", done, self.forests * self.trees)

        return callback
