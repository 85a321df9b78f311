import json

import pytest

from kerncast.testing.models import synthetic_dataset
from kerncast.training.train import Recipe, train

PROBLEM = ["M=512", "N=512", "K=512", "dtype=fp16", "layout=rcr"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model of gemm/triton."""
    folder = tmp_path_factory.mktemp("search-verb")
    return str(
        train(
            synthetic_dataset(folder / "rows"),
            folder / "model",
            Recipe(folds=2, knobs={"trees": 20, "library_trees": 4}, threads=1),
        ).path
    )


def test_search_prints_configs_with_predictions_and_how_much_was_seen(model, run):
    """A table for people; outside the trained range a warning first."""
    code, out, _ = run("select", "--search", model, *PROBLEM, "--strategy", "random", "--budget", "50", "--top", "4")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("random search for M=512 N=512 K=512")
    assert len(lines) == 7
    assert lines[-1].startswith("50 of ")
    assert "valid configs scored" in lines[-1]
    _, out, _ = run("select", "--search", model, "M=100000", *PROBLEM[1:], "--strategy", "random", "--budget", "5")
    assert out.startswith("! M=100000 is outside the trained range (128 to 8192)")


def test_search_as_json_is_the_same_for_the_same_seed(model, run):
    """Configs as values, nothing that is not known."""
    args = [model, *PROBLEM, "--strategy", "de", "--budget", "60", "--top", "3", "--seed", "7", "--json"]
    _, first, _ = run("select", "--search", *args)
    _, second, _ = run("select", "--search", *args)
    found = json.loads(first)
    assert first == second
    assert found["notes"] == []
    assert (found["strategy"], found["seed"], found["scored"], len(found["found"])) == ("de", 7, 60, 3)
    assert found["found"][0]["time_ns"] > 0
    assert "measured_ns" not in found["found"][0]


@pytest.mark.parametrize(("args", "words"), [
    (["M=512"], "gemm needs N"),
    (["M=512", "Q=1"], "unknown parameter of gemm 'Q'"),
    ([*PROBLEM, "--backend", "cpu"], "--backend needs --measure"),
    ([*PROBLEM, "--measure", "--backend", "cpu"], "backend cpu does not run gemm/triton"),
])  # fmt: skip
def test_search_refuses_in_one_sentence(args, words, model, run):
    """Exit code 2, before anything is searched."""
    code, out, err = run("select", "--search", model, *args)
    assert code == 2
    assert out == ""
    assert words in err
