"""All kinds of model through one battery; and what the network of `deep` promises beside it."""

import sys

import numpy as np
import pytest

from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.assess import random_choice
from kerncast.learning.learners.contract import Fitting, Target, read_arrays, write_arrays
from kerncast.learning.learners.deep import Deep, layout, network
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.learning.learners.growing import wanted_shares
from kerncast.learning.learners.kinds import learner_class, options_of
from kerncast.testing.models import ModelContract, synthetic_table
from kerncast.training.procedure import Procedure, Recipe


class TestRoofline(ModelContract):
    kind = "roofline"


class TestLinear(ModelContract):
    kind = "linear"


class TestMlp(ModelContract):
    kind = "mlp"
    knobs = {"epochs": 25, "hidden": (32,), "batch_size": 64, "lr": 5e-3}


class TestGbdt(ModelContract):
    kind = "gbdt"
    knobs = {"trees": 40, "library_trees": 4, "leaves": 15, "lr": 0.2}


@pytest.mark.needs("torch")
class TestDeep(ModelContract):
    kind = "deep"
    knobs = {"epochs": 20, "hidden": (32,), "blocks": 1, "batch_size": 64, "lr": 5e-3}


@pytest.fixture(scope="module")
def fitted():
    """A small listwise network and what it was fitted on."""
    table = synthetic_table(problems=30)
    options = options_of(Deep, {"epochs": 6, "hidden": (16, 8), "blocks": 1, "batch_size": 64})
    return table, Deep(options).fit(table, Fitting(Target("relative")))


@pytest.mark.needs("torch")
def test_a_network_says_the_same_in_numpy_and_in_torch(fitted):
    """One arithmetic: what is trained is what is predicted with."""
    import torch

    table, learner = fitted
    shape = layout(learner.scaling_, learner.options)
    tensors = {name: torch.from_numpy(value) for name, value in learner.weights_.items()}
    inputs = torch.from_numpy(learner.scaling_.apply(table.rows.features))
    np.testing.assert_allclose(network(shape, tensors, inputs).numpy(), learner.outputs(table.rows), rtol=1e-10, atol=1e-12)


@pytest.mark.needs("torch")
def test_fitting_a_network_leaves_torch_as_it_was(fitted):
    """Neither its random numbers nor its threads are touched."""
    import torch

    table, learner = fitted
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    Deep(learner.options).fit(table, Fitting(Target("relative")))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.needs("torch")
def test_without_torch_a_network_predicts_and_training_says_what_to_install(fitted, tmp_path, monkeypatch):
    """The extra is needed to train only."""
    table, learner = fitted
    learner.save(tmp_path)
    expected = learner.predict(table.rows)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = Deep.load(tmp_path, learner.options).predict(table.rows)
    assert np.array_equal(found.target, expected.target)
    assert np.array_equal(found.score, expected.score)
    with pytest.raises(NotFound, match=r"pip install 'kerncast\[torch\]'"):
        Deep(learner.options).fit(table, Fitting(Target("relative")))


@pytest.mark.needs("torch")
def test_a_listwise_network_learns_from_failures_what_not_to_choose():
    """A pointwise one never hears of them."""
    table = synthetic_table(problems=40)
    knobs = {"epochs": 25, "hidden": (32,), "blocks": 1, "batch_size": 64, "lr": 5e-3}
    failed = {}
    for loss in ("pointwise", "listwise"):
        output = Deep(options_of(Deep, {**knobs, "loss": loss})).fit(table, Fitting(Target("relative"))).predict(table.rows)
        chosen = table.trials.choose(output.target if output.score is None else output.score)
        failed[loss] = int((~table.ok[chosen]).sum())
    assert failed["listwise"] == 0 < failed["pointwise"]


def test_a_listwise_loss_wants_the_fastest_ties_alike_and_failures_not_at_all():
    """Shares add up to 1 on each problem; half the speed at a small temperature is worth nothing."""
    table = synthetic_table(problems=5)
    wanted = wanted_shares(table, 0.02)
    sums = np.bincount(table.problem, wanted)
    np.testing.assert_allclose(sums, 1.0)
    assert (wanted[~table.ok] == 0).all()
    best = table.trials.choose(table.trials.time_ns)
    np.testing.assert_array_equal(best, table.trials.choose(-wanted))
    assert (wanted[table.trials.share < 0.5] < 1e-10).all()


@pytest.mark.parametrize("kind", ["linear", "mlp", "gbdt", pytest.param("deep", marks=pytest.mark.needs("torch"))])
@pytest.mark.parametrize(("target", "log"), [("tflops", True), ("bandwidth", False), ("latency", True)])
def test_low_scores_are_fast_whatever_the_target(kind, target, log):
    """Where a target grows with speed, what is chosen must not turn round."""
    table = synthetic_table(problems=30)
    table = table.take(table.ok)
    knobs = {"mlp": TestMlp, "gbdt": TestGbdt, "deep": TestDeep, "linear": TestLinear}[kind].knobs
    procedure = Procedure(Recipe(kind, knobs, target=target, target_log=log, threads=1))
    _, score = procedure.scores(procedure.fit(table), table)
    chosen = table.trials.choose(score)
    assert table.trials.share[chosen].mean() > random_choice(table.trials).mean() + 0.1


@pytest.mark.parametrize("kind", ["mlp", pytest.param("deep", marks=pytest.mark.needs("torch"))])
def test_a_warm_start_of_another_shape_and_a_rate_that_diverges_are_refused(kind):
    """One sentence each, with the knob to change."""
    table = synthetic_table(problems=10)
    learner = learner_class(kind)
    fitting = Fitting(Target("relative"))

    def made(**knobs):
        return learner(options_of(learner, {"epochs": 3, "hidden": (8,), **knobs}))

    base = made().fit(table, fitting)
    with pytest.raises(InvalidValue, match=r"`hidden` is \(9,\), but the model to continue has \(8,\)"):
        made(hidden=(9,)).fit(table, fitting, base)
    with pytest.raises(InvalidValue, match="smaller `lr`"), np.errstate(all="ignore"):
        made(lr={"mlp": 1e200, "deep": 1e6}[kind], epochs=50).fit(table, fitting)


def test_forests_are_the_same_bytes_whatever_the_number_of_threads(tmp_path):
    """Threads change nothing but the time it takes."""
    table = synthetic_table(problems=10)
    for threads in (1, 2):
        (tmp_path / str(threads)).mkdir()
        learner = Gbdt(options_of(Gbdt, {"trees": 3, "library_trees": 4}))
        learner.fit(table, Fitting(Target("relative"), threads=threads)).save(tmp_path / str(threads))
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes()


def test_a_weights_file_that_was_cut_is_refused_by_name(tmp_path):
    """Whatever zip, numpy or the disk say about it."""
    write_arrays(tmp_path / "w.npz", {"a": np.arange(50.0)})
    whole = (tmp_path / "w.npz").read_bytes()
    for length in range(0, len(whole), 37):
        (tmp_path / "w.npz").write_bytes(whole[:length])
        with pytest.raises(BadFile, match=r"w\.npz is damaged"):
            read_arrays(tmp_path / "w.npz")


def test_an_interruption_within_scikit_learn_stops_the_training(monkeypatch):
    """It would be turned into a warning, and the next epoch begun."""

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("sklearn.neural_network._multilayer_perceptron.gen_batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner_class("mlp")().fit(synthetic_table(problems=5), Fitting(Target("relative")))


@pytest.mark.parametrize("kind", ["roofline", "linear", "mlp", "gbdt", pytest.param("deep", marks=pytest.mark.needs("torch"))])
def test_rows_that_all_failed_are_refused_by_every_kind(kind):
    """A fold can leave nothing else where few groups worked."""
    table = synthetic_table(problems=5)
    procedure = Procedure(Recipe(kind).resolved(table, None))
    with pytest.raises(InvalidValue, match="no row that worked to learn from"):
        procedure.fit(table.take(~table.ok))
