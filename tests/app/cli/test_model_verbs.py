"""`train`, `evaluate` and `compare` on the command line: results, JSON, exit codes, one-sentence refusals."""

import json

import polars as pl
import pytest
from tests.support.needs import require

from kerncast.app import cli
from kerncast.data import Dataset
from kerncast.library.registry import FAMILIES
from kerncast.testing.models import FAMILY, synthetic_dataset, synthetic_rows

SHAPE = ["problem.M", "problem.N", "problem.K"]
ROWS = synthetic_rows(problems=50)
SHAPES = ROWS.select(SHAPE).unique(maintain_order=True)
QUICK = ["--trees", "12", "--leaves", "7", "--lr", "0.3", "--folds", "2", "--threads", "1"]
SHARDED = pl.DataFrame(
    {"device": "wormhole_b0", **{f"problem.{name}": [32, 64, 96, 128] for name in "MKN"}, "problem.num_cores": 8,
     "status": "ok", "time_ns": [1e3, 2e3, 4e3, 8e3]}
)  # fmt: skip


def part(start, count):
    return ROWS.join(SHAPES.slice(start, count), on=SHAPE, how="semi")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data `d` of 25 problems and `new` of 25 others; models `m`, `poor` (which cannot choose) and `single`."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", part(0, 25))
    synthetic_dataset(folder / "new", part(25, 25))
    synthetic_dataset(folder / "sharded", SHARDED, FAMILIES.get("matmul_sharded/single"))
    for args in (["d", "m", *QUICK], ["d", "poor", "--kind", "roofline", "--folds", "2"], ["sharded", "single", *QUICK]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["train", str(folder / args[0]), "--out", str(folder / args[1]), *args[2:]])
        assert stopped.value.code == 0
    return folder


def test_training_prints_what_it_learned_from_and_how_good_it_is(home, run, tmp_path):
    """Figures on stdout, progress on stderr; --json is the evaluation of the directory that was written."""
    code, out, err = run("train", home / "d", "--out", tmp_path / "m", *QUICK)
    assert code == 0
    assert "gemm/triton on a100: 250 vectors, 25 problems, 10 configs, 25 failures" in out
    assert "efficiency of the choice (25 problems, out of fold, 2 folds by M,N,K,batch)" in out
    assert f"written to {tmp_path / 'm'}. Next: kerncast evaluate" in out
    assert [line.partition(" (")[0] for line in err.splitlines()] == ["fold 1 of 2 ...", "fold 2 of 2 ...", "the final fit ..."]
    code, out, _ = run("train", home / "d", "--out", tmp_path / "j", *QUICK, "--json")
    assert code == 0
    told = json.loads(out)
    notes = told.pop("notes")
    assert any("fp16" in note for note in notes)
    assert not any(note.startswith(("! ", "- ")) for note in notes)
    assert told == {"path": str(tmp_path / "j"), **json.loads((tmp_path / "j" / "evaluation.json").read_text())}
    assert {item.name for item in tmp_path.iterdir()} == {"m", "j"}


def test_training_without_folds_says_that_nothing_was_judged(home, run, tmp_path):
    """In the text, in JSON and on the card; `--folds` beside it is refused."""
    quick = ["--trees", "5", "--leaves", "7", "--threads", "1", "--no-folds"]
    code, out, _ = run("train", home / "d", "--out", tmp_path / "m", *quick)
    assert code == 0
    assert "not evaluated (--no-folds)" in out
    assert f"kerncast evaluate {tmp_path / 'm'} {home / 'd'} --split problem" in out
    assert "Not evaluated" in (tmp_path / "m" / "MODEL_CARD.md").read_text()
    code, out, _ = run("train", home / "d", "--out", tmp_path / "json", *quick, "--json")
    assert json.loads(out)["evaluated"] is False
    code, _, err = run("train", home / "d", "--out", tmp_path / "x", "--no-folds", "--folds", "3")
    assert (code, "contradict each other" in err) == (2, True)


def test_help_names_every_knob(run):
    """What can be turned is written down, with the kinds it belongs to."""
    _, out, _ = run("train", "--help")
    general = "--kind --family --where --pool --targets --raw-target --folds --seed --threads --base --hard-mining --tune"
    knobs = "--trees --leaves --epochs --batch-size --lr --hidden --loss --format --json --out"
    for option in f"{general} {knobs}".split():
        assert option in out
    for kind in ("roofline", "linear", "mlp", "gbdt", "deep"):
        assert kind in out
    _, out, _ = run("evaluate", "--help")
    for option in "--split --include-seen --where --report --budget-curve --against --worst --save-predictions --json".split():
        assert option in out
    _, out, _ = run("compare", "--help")
    for option in "--max-mean --max-median --max-p10 --max-problem --strict --include-seen --save-predictions --json".split():
        assert option in out


def several_families(folder):
    synthetic_dataset(folder / "x", SHARDED, FAMILIES.get("matmul_sharded/single"))
    Dataset.open(folder / "x").append(FAMILIES.get(FAMILY), part(0, 5).drop("key", "op", "family"))


def two_devices(folder):
    rows = part(0, 8)
    synthetic_dataset(folder / "x", pl.concat([rows, rows.with_columns(device=pl.lit("h100"))]))


def first_problems(count):
    return lambda folder: synthetic_dataset(folder / "x", part(0, count))


REFUSED = {
    "no dataset": (lambda folder: None, [], "there is no dataset at "),
    "no dataset but a folder": (lambda folder: (folder / "x").mkdir(), [], "is not a kerncast dataset: it has no dataset.json"),
    "a dataset without rows": (lambda folder: Dataset.create(folder / "x"), [], "is empty: import or collect rows first"),
    "one problem only": (first_problems(1), [], "there is only one problem"),
    "fewer groups than folds": (first_problems(3), [], "3 groups of problems worked and 5 folds were asked for: .*--folds 3"),
    "several families": (several_families, [], r"families \(gemm/triton, matmul_sharded/single\): name one with --family"),
    "two devices": (two_devices, [], r"2 devices \(a100, h100\), .*: keep one with --where 'device=…', or .*--pool"),
    "a knob of another model": (first_problems(6), ["--hidden", "8,8"], "the model gbdt has no knob --hidden"),
    "a knob that is no list of numbers": (
        first_problems(6), ["--kind", "mlp", "--hidden", "a"], "--hidden is a list of numbers such as 100,50, got 'a'"
    ),
    "a knob too small": (first_problems(6), ["--trees", "0"], "kerncast: --trees must be at least 1, got 0\n$"),
    "a knob out of its range": (first_problems(6), ["--lr", "nan"], "kerncast: --lr must be above 0 and at most 1, got nan\n$"),
    "a knob of few words": (
        first_problems(6), ["--kind", "deep", "--loss", "foo"], "kerncast: --loss is listwise or pointwise, got 'foo'\n$"
    ),
    "nothing left to tune": (
        first_problems(6), ["--kind", "mlp", "--tune", "2", "--lr", "0.1", "--batch-size", "9"],
        "every knob of mlp that --tune could change was given",
    ),
    "folds of a warm start": (
        first_problems(6), ["--base", "nowhere", "--folds", "3"], "--folds 3 does not go with --base"
    ),
    "an unknown kind": (first_problems(6), ["--kind", "gdbt"], "unknown model 'gdbt': did you mean 'gbdt'"),
    "several targets": (first_problems(6), ["--targets", "tflops,latency"], "one model has one target, got tflops,latency"),
    "an unknown target": (
        first_problems(6), ["--format", "ck", "--targets", "tflops, speed"], "relative, latency, tflops, bandwidth, got 'speed'"
    ),
    "a base that is not there": (first_problems(6), ["--base", "nowhere"], "there is no model at nowhere"),
    "a filter of nothing": (first_problems(6), ["--where", "problem.M>99999"], "matches --where 'problem.M>99999'"),
    "an unknown column": (first_problems(6), ["--where", "problem.Q=3"], "problem.Q"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_to_training_is_one_sentence_and_nothing_is_written(run, tmp_path, case):
    """Exit code 2, nothing on stdout, no model and no scratch folder."""
    make, options, why = REFUSED[case]
    make(tmp_path)
    before = sorted(item.name for item in tmp_path.iterdir())
    code, out, err = run("train", tmp_path / "x", "--out", tmp_path / "m", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("kerncast: ")
    assert pl.Series([err]).str.contains(why).all(), err
    assert sorted(item.name for item in tmp_path.iterdir()) == before


def test_tuning_leaves_what_was_given_and_says_what_it_chose(home, run, tmp_path):
    """The line and evaluation.json have the free knobs of the model that was written; --trees, --leaves and --lr stay."""
    require("optuna")
    code, out, _ = run("train", home / "d", "--out", tmp_path / "m", *QUICK, "--tune", "2")
    (line,) = [line for line in out.splitlines() if line.startswith("tuned: ")]
    options = json.loads((tmp_path / "m" / "model.json").read_text())["options"]
    assert (code, options["trees"], options["leaves"], options["lr"]) == (0, 12, 7, 0.3)
    assert line == f"tuned: temperature={options['temperature']} blend={options['blend']}"
    tuned = json.loads((tmp_path / "m" / "evaluation.json").read_text())["tuned"]
    assert tuned == {name: options[name] for name in ("temperature", "blend")}


def test_a_warm_start_takes_the_kind_of_its_base_and_says_what_it_is_judged_on(home, run, tmp_path):
    """Without --model; one hold-out, not folds, on the screen and on the card."""
    quick = ("--epochs", "1", "--threads", "1")
    run("train", home / "d", "--out", tmp_path / "base", "--kind", "mlp", "--folds", "2", *quick)
    code, out, err = run("train", home / "new", "--out", tmp_path / "m", "--base", tmp_path / "base", *quick)
    assert code == 0, err
    assert "problems, on one fixed hold-out by M,N,K,batch)" in out
    assert "On one fixed hold-out by M,N,K,batch, " in (tmp_path / "m" / "MODEL_CARD.md").read_text()
    assert json.loads((tmp_path / "m" / "model.json").read_text())["kind"] == "mlp"


def test_an_existing_directory_is_never_written_into(home, run, tmp_path):
    """It stays what it was."""
    (tmp_path / "m").mkdir()
    code, _, err = run("train", home / "d", "--out", tmp_path / "m", *QUICK)
    assert code == 2
    assert "exists already: choose another name, or remove it first" in err
    assert list((tmp_path / "m").iterdir()) == []


def test_a_model_is_evaluated_on_new_data_for_people_and_for_programs(home, run, tmp_path):
    """Tables with baselines, parts and the worst; JSON with the same; a row per vector on request."""
    code, out, err = run("evaluate", home / "m", home / "new", "--worst", "3", "--save-predictions", tmp_path / "p.parquet")
    assert (code, err.splitlines()[-1]) == (0, "asking the tiers ...")
    for text in (
        "(25 problems, not seen in training)",
        "tiers of `kerncast select`",
        "best_single",
        "library",
        "roofline",
        "by part",
        "the worst 3 choices",
        "the worst 3 predictions",
        "rates over problems",
    ):
        assert text in out
    assert "of the training data" not in out
    saved = pl.read_parquet(tmp_path / "p.parquet")
    assert (saved.height, saved["measured_ns"].null_count()) == (250, 25)  # those that failed, too
    assert {"problem.M", "config.kind", "measured_ns", "predicted_ns", "lower_ns", "upper_ns", "score"} <= set(saved.columns)
    code, out, _ = run("evaluate", home / "m", home / "new", "--worst", "3", "--json")
    summary = json.loads(out)
    assert (code, summary["overall"]["n_problems"], len(summary["worst"])) == (0, 25, 3)
    assert set(summary["overall"]["efficiency_mean"]) == {"value", "lower", "upper"}
    assert summary["problems_seen_in_training"] == 0


def test_training_data_is_refused_labelled_or_split(home, run):
    """Exit 2 with the ways out; --include-seen says so before any figure; --split problem fits nothing again."""
    code, out, err = run("evaluate", home / "m", home / "d")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "all 25 problems were trained on" in err
    assert "--split problem" in err
    assert "--include-seen" in err
    code, out, _ = run("evaluate", home / "m", home / "d", "--include-seen")
    assert (code, out.splitlines()[0]) == (0, "! 25 of these problems were trained on: these figures are of the training data")
    assert "training data included" in out
    assert "not seen in training" not in out
    code, out, err = run("evaluate", home / "m", home / "d", home / "new", "--json")
    assert (code, json.loads(out)["problems_seen_in_training"]) == (0, 25)
    code, out, err = run("evaluate", home / "m", home / "d", "--split", "problem")
    assert (code, err) == (0, "")
    assert "(25 problems, refitted, split by problem)" in out


def test_an_op_with_nothing_to_choose_is_shown_by_its_times(home, run):
    """The worst are off by so much; no config is spoken of."""
    code, out, _ = run("evaluate", home / "single", home / "sharded", "--include-seen")
    assert code == 0
    assert "efficiency of the choice" not in out
    assert "predicted/measured  problem" in out
    assert "the worst 4 choices" not in out
    assert "the only one" not in out


def test_a_budget_and_other_choices_are_shown_beside_the_model(home, run, tmp_path):
    """Three more tables and one more line; both are in the JSON too."""
    shape = dict(zip("MNK", SHAPES.row(30), strict=True))
    choice = {"problem": {**shape, "dtype": "fp16", "layout": "rcr"}, "config": {"kind": "library"}}
    (tmp_path / "s.json").write_text(json.dumps([choice]))
    extra = ["--against", tmp_path / "s.json", "--budget-curve"]
    code, out, _ = run("evaluate", home / "poor", home / "new", *extra)
    assert code == 0
    assert "against s.json: on 1 problems the model gets" in out
    for title in ("by number of problems measured", "by share of each problem's configs measured", "chosen actively"):
        assert title in out
    code, out, _ = run("evaluate", home / "poor", home / "new", *extra, "--json")
    summary = json.loads(out)
    assert (set(summary["budget"]), summary["against"]["n_problems"]) == ({"problems", "configs", "active"}, 1)
    (tmp_path / "s.json").write_text("[3]")
    code, out, err = run("evaluate", home / "poor", home / "new", *extra)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not a list of solutions" in err


@pytest.mark.parametrize(
    ("old", "new", "options", "code", "verdict"),
    [
        ("m", "m", [], 0, "SAME"),
        ("m", "poor", [], 1, "WORSE"),
        ("poor", "m", ["--max-problem", "100"], 0, "BETTER"),
        ("m", "poor", ["--max-mean", "100", "--max-median", "100", "--max-p10", "100", "--max-problem", "100"], 0, "AMBIGUOUS"),
        ("m", "poor", ["--max-mean", "100", "--max-median", "100", "--max-p10", "100", "--max-problem", "100", "--strict"], 1,
         "AMBIGUOUS"),
    ],
)  # fmt: skip
def test_the_verdict_is_the_exit_code(home, run, old, new, options, code, verdict):
    """WORSE is 1, AMBIGUOUS only with --strict; printed and as JSON."""
    got, out, err = run("compare", home / old, home / new, home / "new", *options)
    assert (got, err) == (code, "")
    assert out.splitlines()[-1].startswith(f"{verdict}: ")
    assert "25 problems" in out
    got, out, _ = run("compare", home / old, home / new, home / "new", *options, "--json")
    summary = json.loads(out)
    assert (got, summary["verdict"], summary["n_problems"]) == (code, verdict, 25)
    assert summary["reasons"]
    assert {"mean", "median", "p10", "min"} == set(summary["old"])


def test_comparing_says_what_is_left_out_and_keeps_the_pairs(home, run, tmp_path):
    """A row per problem on request; training data is labelled; other families and wrong limits are exit 2."""
    code, out, _ = run(
        "compare", home / "m", home / "m", home / "d", home / "new", "--save-predictions", tmp_path / "p.parquet"
    )
    assert code == 0
    assert "25 problems that a model was trained on were left out" in out
    pairs = pl.read_parquet(tmp_path / "p.parquet")
    assert (pairs.height, pairs["same_choice"].all()) == (25, True)
    assert (pairs["old_efficiency"] == pairs["new_efficiency"]).all()
    _, out, _ = run("compare", home / "m", home / "m", home / "d", "--include-seen")
    assert out.startswith("! some of these problems were trained on")
    for args, why in [
        ([home / "m", home / "single", home / "new"], "only models of one family can be compared"),
        ([home / "m", home / "poor", home / "d"], "all 25 problems were trained on"),
        (
            [home / "m", home / "poor", home / "new", "--max-p10", "-1"],
            "--max-p10 is a drop of efficiency from 0 to 100 %, got -1",
        ),
        ([home / "m", home / "poor", home / "new", "--save-predictions", tmp_path / "no" / "p.parquet"], "could not write"),
        ([home / "m", home / "nowhere", home / "new"], "there is no model at"),
    ]:
        code, _, err = run("compare", *args)
        assert (code, err.count("\n")) == (2, 1)
        assert why in err
