"""Learners of another package: found by entry points, trained, chosen with, exported, with C and without."""

import json
import subprocess
import sys

import numpy as np
import pytest

from kerncast.answering.selector import Selector
from kerncast.errors import BadFile, NotFound
from kerncast.learning.learners.kinds import learner_class, learner_kinds
from kerncast.native.tiers.build import TierOptions
from kerncast.testing import repeats
from kerncast.testing.exporters import ExporterContract
from kerncast.testing.models import ModelContract, synthetic_dataset, synthetic_rows

PACKAGE = '''
"""Ridge regression over logarithms of features: once with C, once without."""

from typing import Annotated

import numpy as np
from msgspec import Meta

from kerncast.learning.learners.contract import CSource, learn_function
from kerncast.learning.learners.contract import Learner, LearnerOptions, Output, label_weights, read_arrays, write_arrays


class RidgeOptions(LearnerOptions, frozen=True):
    pull: Annotated[float, Meta(gt=0, description="how strongly weights are pulled to zero")] = 1e-3
    leaves: Annotated[str, Meta(description="not what gbdt means by it")] = "few"


class Plain(Learner):
    kind = "plain_ridge"
    doc = "ridge regression"
    options_type = RidgeOptions

    def fit(self, table, fitting, base=None):
        ok = table.take(table.ok)
        x, y = self._inputs(ok.rows.features), fitting.target.encode(ok.time_ns, ok.rows)
        weights = label_weights(ok)[:, None]
        inner = x.T @ (weights * x) + self.options.pull * len(x) * np.eye(x.shape[1]) * weights.mean()
        self.weights_ = np.linalg.solve(inner, x.T @ (weights[:, 0] * y))
        return self

    @staticmethod
    def _inputs(features):
        return np.column_stack([np.ones(len(features)), np.log1p(np.maximum(features, 0.0))])

    def predict(self, rows):
        total = np.zeros(len(rows))
        for place, column in enumerate(self._inputs(rows.features).T):
            total += self.weights_[place] * column
        return Output(total)

    def save(self, folder):
        write_arrays(folder / "ridge.npz", {"weights": self.weights_})

    @classmethod
    def load(cls, folder, options):
        learner = cls(options)
        learner.weights_ = read_arrays(folder / "ridge.npz")["weights"]
        return learner

    def size(self):
        return {"weights": len(self.weights_)}


class Compiled(Plain):
    kind = "ridge"

    def c_source(self, scope):
        text = scope.sealed.array("double", "kc_ridge", self.weights_)
        body = "    double total = kc_ridge[0];\\n    for (int32_t i = 1; i < COUNT; i++)\\n"
        body += "        total += kc_ridge[i] * log1p(x[i - 1] > 0.0 ? x[i - 1] : 0.0);\\n    raw[0] = total;\\n"
        return CSource(text + learn_function(body.replace("COUNT", str(len(self.weights_)))))


not_a_learner = 5
'''
ENTRIES = """[kerncast.learners]
plain_ridge = someone_elses:Plain
ridge = someone_elses:Compiled
misnamed = someone_elses:Plain
no_learner = someone_elses:not_a_learner
missing = someone_elses:Nothing
"""
PROBLEM = ("M=1024", "N=512", "K=768", "dtype=fp16", "layout=rcr")


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The package as pip would have left it: a module, and metadata with entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "someone_elses.py").write_text(PACKAGE)
    info = site / "someone_elses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone-elses\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        learner_class.cache_clear()
        yield site
    learner_class.cache_clear()
    sys.modules.pop("someone_elses", None)


class TestRidge(ModelContract):
    kind = "ridge"


class TestRidgeInC(ExporterContract):
    kind = "ridge"
    random_problems = repeats(1_000, 20_000)


def trained(run, folder, kind):
    synthetic_dataset(folder / "d", synthetic_rows(problems=30))
    code, _, err = run("train", folder / "d", "--kind", kind, "--pull", 0.01, "--folds", 2, "--out", folder / "m")
    assert code == 0, err
    return folder / "m"


@pytest.mark.needs("a C compiler")
@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("kind", ["ridge", "plain_ridge"])
def test_it_is_trained_chosen_with_and_exported(kind, run, tmp_path):
    """All verbs; without C Python answers, and only the export to C says that it cannot."""
    model = trained(run, tmp_path, kind)
    assert json.loads((model / "model.json").read_text())["options"]["pull"] == 0.01
    code, out, err = run("select", model, *PROBLEM, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["status"], answer["tier"]) == ("ok", "full")
    chosen = [part for name, value in answer["config"].items() for part in ("--config", f"{name}={value}")]
    code, out, _ = run("predict", model, *PROBLEM, *chosen, "--json")
    assert code == 0
    assert json.loads(out)["time_ns"] == pytest.approx(answer["time_ns"], rel=1e-12)
    synthetic_dataset(tmp_path / "new", synthetic_rows(problems=8, seed=5))
    code, out, err = run("evaluate", model, tmp_path / "new", "--json")
    assert code == 0, err
    assert {line["tier"] for line in json.loads(out)["tiers"]} == {"tree", "portfolio", "full"}
    assert run("export", model, "--to", "json", "--out", tmp_path / "choices.json")[0] == 0
    code, _, err = run("export", model, "--to", "c", "--out", tmp_path / "c")
    if kind == "ridge":
        assert code == 0, err
        assert "kc_ridge[" in (tmp_path / "c" / "kerncast.c").read_text()
    else:
        assert code == 2
        assert "models of kind plain_ridge cannot be exported to C" in err
        assert not (tmp_path / "c").exists()


@pytest.mark.needs("a C compiler")
def test_with_and_without_c_the_answers_are_one(run, tmp_path):
    """Two kinds with the same weights: every tier chooses alike."""
    selectors = []
    for kind in ("ridge", "plain_ridge"):
        (tmp_path / kind).mkdir()
        selectors.append(Selector(trained(run, tmp_path / kind, kind), options=TierOptions(samples=200)))
    assert [selector.is_compiled for selector in selectors] == [True, False]
    rng = np.random.default_rng(0)
    for m, n, k in rng.integers(200, 4000, (30, 3)).tolist():
        problem = {"M": m, "N": n, "K": k, "dtype": "fp16", "layout": "rcr"}
        for tier in ("tree", "portfolio", "full"):
            ours, theirs = (selector.select(problem, tier) for selector in selectors)
            assert (ours.config, ours.tier) == (theirs.config, theirs.tier)
            if tier != "tree":  # which answers without a time where it is sure
                assert ours.time_ns == pytest.approx(theirs.time_ns, rel=1e-12)


def test_help_lists_its_knobs_and_loads_nothing_heavy(installed):
    """By what their own options type says; a name that two learners read differently goes to each in its own way."""
    probe = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import kerncast.app.cli as cli\n"
        "try: cli.main(['train', '--help'])\n"
        "except SystemExit: print([n for n in ('lightgbm', 'sklearn', 'torch') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(installed)], capture_output=True, text=True, check=True)
    words = " ".join(done.stdout.split())
    assert "--pull FLOAT plain_ridge, ridge: how strongly weights are pulled to zero." in words
    assert "--leaves NAME gbdt: leaves of a tree; plain_ridge, ridge: not what gbdt means by it." in words
    assert words.endswith("[]")


def test_a_knob_that_two_learners_read_differently_is_read_by_the_one_asked_for(run, tmp_path):
    """A whole number for gbdt, a word for the other package's."""
    synthetic_dataset(tmp_path / "d", synthetic_rows(problems=6))
    own = {"gbdt": ["--leaves", "7", "--trees", "3"], "plain_ridge": ["--leaves", "many"]}
    for kind, knobs in own.items():
        code, _, err = run("train", tmp_path / "d", "--kind", kind, *knobs, "--folds", 2, "--out", tmp_path / kind)
        assert code == 0, err
    assert json.loads((tmp_path / "gbdt" / "model.json").read_text())["options"]["leaves"] == 7
    code, _, err = run("train", tmp_path / "d", "--leaves", "many", "--out", tmp_path / "x")
    assert code == 2
    assert "'many' is not a valid integer" in err


def test_what_another_package_does_wrong_is_told_by_its_name():
    """And does not keep other kinds from working."""
    assert set(learner_kinds()) > {"gbdt", "ridge", "missing"}
    with pytest.raises(BadFile, match="the model 'missing' cannot be loaded from someone_elses:Nothing"):
        learner_class("missing")
    for kind in ("misnamed", "no_learner"):
        with pytest.raises(BadFile, match=f"is not a Learner of the kind '{kind}'"):
            learner_class(kind)
    with pytest.raises(NotFound, match="unknown model 'ridg': did you mean 'ridge'"):
        learner_class("ridg")
