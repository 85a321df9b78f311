"""The portfolio: the smallest set that loses little on problems that it was not chosen by."""

import json

import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.metrics import Trials
from kerncast.learning.table import load_table
from kerncast.library.registry import FAMILIES
from kerncast.measuring.sweeping.selection import parse_selection
from kerncast.models.measured import Measured, measured_by_model, measured_in_table
from kerncast.native.tiers.smallest_set import Portfolio, choose_portfolio, model_portfolio, shortlist
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

FAMILY = FAMILIES.get("gemm/triton")


def measured_of(shares, shuffle=None):
    """Trials with these shares of problem × config (0: it failed, NaN: not tried); every problem is a group of its own."""
    shares = np.asarray(shares, dtype=np.float64)
    problem, config = np.nonzero(~np.isnan(shares))
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(len(problem))
        problem, config = problem[order], config[order]
    share = shares[problem, config]
    time_ns = np.where(share > 0, 1000.0 / np.where(share > 0, share, 1.0), np.inf)
    unknown = np.full(len(problem), np.nan)
    return Measured(
        FAMILY,
        Trials(problem, config, time_ns, unknown, unknown, unknown),
        pl.DataFrame({"problem.M": np.arange(1, len(shares) + 1)}),
        pl.DataFrame({"config.number": np.arange(shares.shape[1])}),
        np.arange(len(shares)),
    )


def test_an_early_pick_is_exchanged_when_others_make_it_needless():
    """Greedy alone would keep the config that is fair everywhere; the two specialists lose nothing."""
    fair, odd, even = np.full(40, 0.8), np.tile([1.0, 0.5], 20), np.tile([0.5, 1.0], 20)
    found = choose_portfolio(measured_of(np.column_stack([fair, odd, even])))
    assert found.configs == (1, 2)
    assert [point.size for point in found.curve] == [1, 2]
    assert found.curve[0].training_loss == pytest.approx(0.2)
    assert found.curve[1].loss == pytest.approx(0.0)
    assert found.reached


def test_the_loss_is_of_problems_that_the_set_was_not_chosen_by():
    """Each problem has a best config of its own: in training 6 % are lost, held out 30 %, and the largest set is taken."""
    found = choose_portfolio(measured_of(np.where(np.eye(20) > 0, 1.0, 0.7)), most=16)
    assert not found.reached
    assert len(found.configs) == 16
    assert found.curve[-1].training_loss == pytest.approx(0.3 * 4 / 20)
    assert found.curve[-1].loss == pytest.approx(0.3)
    assert found.curve[-1].efficiency_min == pytest.approx(0.7)
    assert found.folds == 5


def test_a_problem_that_one_config_alone_can_run_gets_it_where_there_is_room():
    """However little it weighs; without room it is counted and loses all."""
    shares = np.column_stack([np.r_[np.ones(400), 0.0], np.r_[np.full(400, 0.5), 0.0], np.r_[np.zeros(400), 1.0]])
    found = choose_portfolio(measured_of(shares), loss=0.01)
    assert found.configs == (0, 2)
    assert (found.curve[-1].size, found.uncovered) == (1, 0)
    tight = choose_portfolio(measured_of(shares), loss=0.01, most=1)
    assert (tight.configs, tight.uncovered) == ((0,), 1)
    assert tight.curve[0].efficiency_min == 0.0


def test_configs_that_were_sampled_per_problem_are_said_to_be_the_reason_for_the_loss():
    """What was not tried counts as a loss of 100 %; the same configs everywhere, failures included, give no caution."""
    own = np.full((20, 40), np.nan)
    own[np.repeat(np.arange(20), 2), np.arange(40)] = 1.0
    sampled = measured_of(own)
    found = choose_portfolio(sampled, most=8)
    assert (found.untried, found.curve[-1].loss) == (20, 1.0)
    caution = Portfolio(sampled, found, 0.002).caution
    assert caution.startswith("on 20 of 20 held-out problems none of the set was tried")
    assert "measure the same configs on every problem" in caution
    everywhere = measured_of(np.nan_to_num(own) + np.eye(20, 40))
    assert Portfolio(everywhere, choose_portfolio(everywhere), 0.002).caution == ""


def test_ties_go_to_the_first_config_whatever_the_order_of_rows():
    """Equal columns, shuffled trials, configs that were not tried everywhere: one answer."""
    shares = np.random.default_rng(3).uniform(0.3, 1.0, (60, 12))
    shares = np.column_stack([shares, shares]) / shares.max(axis=1, keepdims=True)
    shares[::7, 5] = np.nan
    first = choose_portfolio(measured_of(shares))
    assert choose_portfolio(measured_of(shares, shuffle=1)) == first
    assert not {number for number in first.configs if number >= 12 and number != 17}


def test_of_very_many_configs_the_promising_ones_are_enough():
    """Each of three configs among 1,500 is best on a third of the problems: they are found."""
    shares = np.random.default_rng(5).uniform(0.2, 0.6, (90, 1500))
    for third, config in enumerate((1400, 700, 3)):
        shares[third::3, config] = 1.0
    found = choose_portfolio(measured_of(shares))
    assert sorted(found.configs) == [3, 700, 1400]


def test_one_group_holds_nothing_out_and_wrong_wishes_are_refused():
    """The curve is then of training; loss and size out of range are named."""
    found = choose_portfolio(measured_of([[1.0, 0.5]]))
    assert (found.folds, found.configs, found.reached) == (0, (0,), True)
    with pytest.raises(InvalidValue, match=r"`loss` must be from 0 to below 1 .* got 1\.5"):
        choose_portfolio(measured_of([[1.0, 0.5]]), loss=1.5)
    with pytest.raises(InvalidValue, match="no config worked on any problem"):
        choose_portfolio(measured_of([[0.0, 0.0]]))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` of 30 problems and a model `m` trained on it."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=30))
    train(folder / "d", folder / "m", Recipe("gbdt", {"trees": 6, "library_trees": 4, "leaves": 7}, folds=3, threads=1))
    return folder


def test_a_model_and_its_data_give_the_same_portfolio(home):
    """By rows of the model's candidates; out-of-fold scores come along."""
    from kerncast.models.model import Model

    model = Model.load(home / "m")
    own, data = measured_by_model(model), measured_in_table(load_table([Dataset.open(home / "d")]))
    columns = own.configs.columns
    picked = model_portfolio(model, 0.01, 8)
    assert model.candidates.select(columns)[list(picked)].equals(
        data.configs[list(choose_portfolio(data, 0.01, 8).configs)].select(columns)
    )
    assert own.score is not None
    assert len(own.score) == len(own.trials.problem)


def test_the_verb_shows_the_curve_and_writes_a_list_that_sweep_reads(home, run, tmp_path):
    """A line and a bar per size; --json has the same numbers; --out is what `--configs portfolio:FILE` takes."""
    code, out, _ = run("export", "--to", "portfolio", home / "m", "--loss", "0.01", "--out", tmp_path / "keep.json")
    assert code == 0
    assert "gemm/triton: 30 problems, 9 configs" in out
    assert "█" in out
    assert f"written to {tmp_path / 'keep.json'}. Next: kerncast sweep gemm/triton" in out
    code, text, _ = run("export", "--to", "portfolio", home / "d", "--loss", "0.01", "--json")
    data = json.loads(text)
    assert data["portfolio"] == json.loads((tmp_path / "keep.json").read_text())
    assert [point["size"] for point in data["curve"]] == list(range(1, len(data["curve"]) + 1))
    listed = parse_selection(FAMILY, f"portfolio:{tmp_path / 'keep.json'}").portfolio
    assert listed is not None
    assert listed.height == len(data["portfolio"])


def test_the_verb_refuses_what_it_cannot_do(home, run, tmp_path):
    """One sentence and exit code 2: a list that sweep could not read, a filter on a model, nothing to choose."""
    assert "--out must be a .json file" in run("export", "--to", "portfolio", home / "d", "--out", tmp_path / "keep.csv")[2]
    code, _, err = run("export", "--to", "portfolio", home / "m", "--where", "problem.M=128")
    assert (code, err.count("\n")) == (2, 1)
    assert "--where and --family are for datasets" in err
    single = FAMILIES.get("matmul_sharded/single")
    rows = {f"problem.{name}": [32, 64] for name in "MKN"} | {"problem.num_cores": 8, "status": "ok", "time_ns": [1e3, 2e3]}
    synthetic_dataset(tmp_path / "s", pl.DataFrame({"device": "wormhole_b0", **rows}), single)
    code, _, err = run("export", "--to", "portfolio", tmp_path / "s")
    assert code == 2
    assert "matmul_sharded/single has exactly one config: there is nothing to choose" in err


def test_a_shortlist_is_the_fewest_configs_that_lose_little_by_scores():
    """Two specialists cover all problems; what cannot run has an infinite score, and a problem without any does not count."""
    fast, slow, never = 0.0, 1.0, np.inf
    scores = np.array([[slow, fast, never], [slow, never, fast], [never, never, never], [slow, fast, slow]])
    assert sorted(shortlist(scores, 0.001, 3)) == [1, 2]
    assert shortlist(scores, 0.9, 3) == [1]
    assert len(shortlist(scores, 0.0, 1)) == 1
