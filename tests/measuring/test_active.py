"""Active collecting: rounds, limits, resume, and whether a model chooses better than chance."""

import json

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.app import cli
from kerncast.app.api.collect import worth_by_model
from kerncast.data import Dataset
from kerncast.data.journal import NAME
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Active, Collection, Request
from kerncast.measuring.run import collect
from kerncast.testing.backends import QUICK, analytic_ns

TRITON = family_named("gemm/triton")
ANALYTIC = "kerncast.testing.backends:Analytic"
SIZES = [(16, 512), (48, 96), (100, 1000), (200, 64), (256, 256), (300, 40), (512, 32), (700, 700)]
PROBLEMS = [(m, n, k) for m, n in SIZES for k in (64, 256, 640)]
CONFIGS = 80


def vectors():
    """80 configs on each of 24 problems."""
    configs = TRITON.config.sample(CONFIGS, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    configs = configs.rename({name: f"config.{name}" for name in configs.columns})
    fixed = {"split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    return pl.concat(
        configs.with_columns(*(pl.lit(v).alias(f"problem.{n}") for n, v in {"M": m, "N": n, "K": k, **fixed}.items()))
        for m, n, k in PROBLEMS
    )


def request(out, worth, limit=480, **changes):
    return Request(TRITON, ANALYTIC, ("0",), out, QUICK, active=Active(worth, 0, limit), **changes)


def by_chance(known, rest, device):
    return None


def best_found(path):
    """How many problems have their best config among the rows, and what share of the best speed the rows reach."""
    problem = ["problem.M", "problem.N", "problem.K"]
    times = [
        analytic_ns(
            {name.removeprefix("problem."): value for name, value in row.items()},
            {name.removeprefix("config."): value for name, value in row.items()},
        )
        for row in vectors().iter_rows(named=True)
    ]
    best = vectors().with_columns(best=pl.Series(times)).group_by(problem).agg(pl.min("best"))
    rows = Dataset.open(path).read().group_by(problem).agg(pl.min("time_ns")).join(best, on=problem, how="right")
    share = (rows["best"] / rows["time_ns"]).fill_null(0.0).to_numpy()
    return int((share > 0.999).sum()), float(share.mean())


def test_a_model_finds_the_best_config_of_more_problems_than_chance(tmp_path):
    """The same number of vectors from the same first round, a quarter of all."""
    for name, worth in (("random", by_chance), ("active", worth_by_model(TRITON, 0))):
        summary = collect(request(tmp_path / name, worth), [vectors()])
        rows = Dataset.open(tmp_path / name).read()
        assert rows.height == rows["key"].n_unique() == summary.measured == 480
        assert (summary.left_out, summary.without_a_row) == (len(PROBLEMS) * CONFIGS - 480, False)
    (found_by_chance, share_by_chance), (found, share) = best_found(tmp_path / "random"), best_found(tmp_path / "active")
    assert found > found_by_chance
    assert share > share_by_chance


def test_a_killed_collection_chooses_the_same_vectors_when_it_goes_on(tmp_path):
    """Rounds depend on the rows alone: interrupted between two of them, the end is the one of an unbroken run."""
    by_model = worth_by_model(TRITON, 0)
    calls = []

    def killed(known, rest, device):
        calls.append(known.height)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return by_model(known, rest, device)

    with pytest.raises(RuntimeError, match="killed"):
        collect(request(tmp_path / "d", killed, 300), [vectors()])
    assert (tmp_path / "d" / NAME).exists()
    summary = collect(request(tmp_path / "d", by_model, 300), [vectors()])
    assert summary.already_there == calls[1] > calls[0] > 0
    assert summary.measured + summary.already_there == 300
    collect(request(tmp_path / "whole", by_model, 300), [vectors()])
    assert set(Dataset.open(tmp_path / "d").read()["key"]) == set(Dataset.open(tmp_path / "whole").read()["key"])


def test_when_the_budget_ends_the_dataset_is_finished_and_can_be_extended(tmp_path, monkeypatch):
    """To stop early is the purpose; --resume adds to it, up to the new limit."""
    monkeypatch.setattr(Collection, "stop", lambda self: self.summary.statuses.total() >= 60)
    first = collect(request(tmp_path / "d", by_chance, None, budget_seconds=3600.0), [vectors()])
    assert not first.without_a_row
    assert not (tmp_path / "d" / NAME).exists()
    assert first.left_out == len(PROBLEMS) * CONFIGS - first.measured > 0
    monkeypatch.undo()
    second = collect(request(tmp_path / "d", by_chance, 200, extend=True), [vectors()])
    assert second.already_there == first.measured
    assert Dataset.open(tmp_path / "d").rows == 200


def test_an_interrupted_active_collection_is_not_finished(tmp_path, monkeypatch):
    """Ctrl-C leaves the journal, as it does without an active choice."""

    def stop(self):
        self.stopping = self.summary.statuses.total() >= 60
        return self.stopping

    monkeypatch.setattr(Collection, "stop", stop)
    summary = collect(request(tmp_path / "d", by_chance), [vectors()])
    assert (summary.without_a_row, summary.interrupted) == (True, True)
    assert (tmp_path / "d" / NAME).exists()


def test_the_first_round_is_spread_over_the_problems_and_later_ones_are_small(tmp_path):
    """Two vectors of each problem (or 5 % of all) at random; then a tenth of the limit, a chunk at the least."""
    seen = []

    def watched(known, rest, device):
        counts = known.group_by("problem.M", "problem.N", "problem.K").len()["len"]
        seen.append((known.height, counts.min(), counts.max(), rest.height))
        return np.arange(rest.height, dtype=np.float64)

    collect(request(tmp_path / "d", watched, 1000, chunk_size=16), [vectors(), vectors()])
    assert seen[0] == (96, 4, 4, 1824)
    assert [known for known, *_ in seen[1:4]] == [192, 288, 384]


def test_too_few_times_give_no_worth_and_groups_without_any_do_no_harm():
    """Random until there is something to learn from."""
    rest = kerncast.data.schema.with_optional(TRITON, vectors())
    ok = pl.Series([True] * 19 + [False] * (rest.height - 19))
    worth, device = worth_by_model(TRITON, 0), devices.get("local")

    def known(ok):
        columns = {"device": pl.lit(device.name), "status": pl.when(ok).then(pl.lit("ok")).otherwise(pl.lit("crash"))}
        rows = rest.with_columns(**columns, time_ns=pl.when(ok).then(1000.0 + pl.int_range(pl.len()) % 7))
        return kerncast.data.schema.conform(TRITON, rows)

    assert worth(known(ok), rest, device) is None
    some = pl.Series([index < 2 * CONFIGS for index in range(rest.height)])
    assert np.isfinite(worth(known(some), rest, device)).all()


COMMAND = ("collect", "gemm/triton", "--backend", ANALYTIC, "--problems", "grid:M=64,100,300;N=64,500;K=256")
COMMAND += ("--vary", "dtype=fp16", "--vary", "layout=rcr", "--configs", "sample:30")


def test_the_command_says_what_was_chosen_and_refuses_a_choice_without_a_limit(tmp_path, capsys):
    """Exit 0 with fewer rows than vectors; without a limit, one sentence."""

    def run(*args):
        with pytest.raises(SystemExit) as end:
            cli.main([*COMMAND, *args])
        return end.value.code or 0, capsys.readouterr()

    code, said = run("--active", "--out", str(tmp_path / "d"))
    assert code == 2
    assert "an active choice needs a limit, --budget TIME or --max-vectors N" in said.err
    code, said = run("--active", "--max-vectors", "50", "--out", str(tmp_path / "d"))
    assert code == 0, said.err
    assert "50 of 180 vectors measured, chosen actively" in said.out
    code, said = run("--max-vectors", "50", "--out", str(tmp_path / "thin"), "--json")
    told = json.loads(said.out)
    assert (told["vectors"], told["measured"], told["left_out"], told["complete"]) == (50, 50, 0, True)
