"""The whole chain from Python: nothing but public names, results that live in temporary folders until they are saved."""

import threading
from pathlib import Path

import polars as pl
import pytest

import kerncast as kc
from kerncast.measuring.sweeping import Sweep
from kerncast.testing.models import synthetic_dataset, synthetic_rows

SMALL = {"trees": 6, "library_trees": 4, "leaves": 7, "lr": 0.3, "bags": 1, "folds": 2, "threads": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    synthetic_dataset(folder / "mine", synthetic_rows(problems=24))
    synthetic_dataset(folder / "other", synthetic_rows(problems=12, seed=7))
    return kc.open(folder / "mine"), kc.open(folder / "other")


@pytest.fixture(scope="module")
def model(data):
    return kc.train(data[0], **SMALL)


def test_measuring_gives_a_dataset_from_any_thread(tmp_path):
    """`collect` installs no signal handler: a thread of the caller's may measure, and the dataset says what was."""
    found = []
    options = {
        "problems": "grid:M=8,16;N=8;K=8",
        "vary": {"dtype": "fp32", "layout": "rrr"},
        "configs": "sample:2",
        "measuring": kc.Measuring(samples=2),
    }
    worker = threading.Thread(target=lambda: found.append(kc.collect("gemm/cpu", **options)))
    worker.start()
    worker.join()
    (dataset,) = found
    assert dataset.frame().height == dataset.collected.vectors == 4
    kept = dataset.save(tmp_path / "kept")
    assert kept.path == tmp_path / "kept"
    assert kc.open(tmp_path / "kept").rows == 4
    assert kc.collect("gemm/cpu", dry_run=True, **options).vectors == 4


def test_a_sweep_is_measured_as_it_is_and_enumerated_once(monkeypatch):
    """`collect` takes what `sweep` gives: the same vectors in the same order, from the pools that counting them made."""
    asked = {"problems": "grid:M=8,16;N=8;K=8", "vary": {"dtype": "fp32", "layout": "rrr"}, "configs": "sample:2"}
    sweep = kc.sweep("gemm/cpu", **asked)
    listed = pl.concat(list(sweep.iter_blocks()))
    monkeypatch.setattr(Sweep, "_opened", None)
    assert kc.collect(sweep, dry_run=True).vectors == listed.height == 4
    measured = kc.collect(sweep, measuring=kc.Measuring(samples=2)).frame()
    assert sorted(measured.select(listed.columns).rows(), key=str) == sorted(listed.rows(), key=str)
    for extra in ({"problems": "llm"}, {"configs": "all"}, {"extent": kc.Extent(max_vectors=3)}):
        with pytest.raises(kc.InvalidValue, match="a sweep says what to measure"):
            kc.collect(sweep, **extra)


def test_a_trained_model_lives_in_a_temporary_folder_until_it_is_saved(model, tmp_path):
    """Without `out` the model works at once; `save` keeps it, and what was saved is the same model."""
    assert model.path.exists()
    saved = model.save(tmp_path / "model")
    assert isinstance(kc.open(tmp_path / "model"), kc.Model)
    assert saved.manifest.checksum == model.manifest.checksum


def test_judging_gives_figures_with_intervals(model, data):
    """Typed, printable, and the same numbers as the command line's table."""
    found = kc.evaluate(model, data[0], split="problem")
    mean = found.overall.efficiency.mean
    assert mean.interval[0] <= mean.value <= mean.interval[1]
    assert f"{mean.value:.2%}" in str(found)
    assert "<" in found._repr_html_()


def test_a_verdict_is_true_unless_the_new_model_is_worse(model, data):
    """The same model twice is SAME, and safe to ship."""
    verdict = kc.compare(model, model, data[1])
    assert verdict.verdict == "SAME"
    assert bool(verdict)


def test_one_problem_many_problems_and_frames_are_predicted(model, data):
    """A mapping gives an answer, a list gives answers, a frame gives a frame with times beside it."""
    row = data[0].frame().filter(status="ok").row(0, named=True)
    problem = {
        name.removeprefix("problem."): row[name] for name in row if name.startswith("problem.") and row[name] is not None
    }
    config = {name.removeprefix("config."): row[name] for name in row if name.startswith("config.") and row[name] is not None}
    one = model.predict(problem, config=config)
    assert one.ok
    assert one.lower_ns <= one.time_ns <= one.upper_ns
    assert [item.time_ns for item in model.predict([problem, problem], config=config)] == [one.time_ns] * 2
    frame = model.predict(data[0].frame().filter(status="ok").select(pl.col("^(problem|config)\\..*$")))
    assert frame["time_ns"].null_count() == 0


def test_a_selector_is_called_with_the_problem(model, data):
    """As arguments or as a mapping; the answer is the same."""
    pick = kc.Selector(model, compile=False)
    row = data[0].frame().row(0, named=True)
    problem = {
        name.removeprefix("problem."): row[name] for name in row if name.startswith("problem.") and row[name] is not None
    }
    assert pick(**problem).config == pick(problem).config
    with pytest.raises(kc.InvalidValue, match="not both"):
        pick(problem, M=3)


def test_an_export_returns_its_files(model, tmp_path):
    """C with a header and a self-test; a second export to the same place is refused."""
    files = kc.export(model, to="c", out=tmp_path / "picker", prefix="picker")
    assert {"picker.c", "picker.h", "picker.hpp", "selftest.c"} <= {path.name for path in files}
    with pytest.raises(kc.InvalidValue, match="exists already"):
        kc.export(model, out=tmp_path / "picker")


def test_a_store_is_opened_asked_and_queried(model, tmp_path, monkeypatch):
    """Added, found by its op, asked in JSON as an object, and its model opened by its whole id."""
    store = kc.Store.open(tmp_path / "store")
    store.add(model)
    assert store.find("gemm").load().manifest.checksum == model.manifest.checksum
    assert isinstance(kc.open(tmp_path / "store"), kc.Store)
    reply = kc.predict({"op": "gemm", "M": 1}, store=store)
    assert reply["status"] == "bad_input"
    with monkeypatch.context() as usual:
        usual.setenv("KERNCAST_STORE", str(tmp_path / "store"))
        (entry,) = store.entries()
        assert kc.open(entry.id).manifest.checksum == model.manifest.checksum
        assert isinstance(kc.open("shipped/gemm-vllm"), kc.Model)
        for missing in ("gemm", "shipped/gem", entry.id[1:]):  # no id is meant
            with pytest.raises(kc.NotFound, match="check the path, or see `kerncast models`"):
                kc.open(missing)
    assert '"status":"bad_input"' in kc.predict("{", store=store)


def test_numbers_below_one_are_refused_as_on_the_command_line():
    """From Python no option type stands before the library."""
    for name in ("chunk_size", "build_jobs", "samples"):
        with pytest.raises(kc.InvalidValue, match=f"`{name}` must be at least 1, got 0"):
            kc.collect(
                "gemm/cpu",
                problems="grid:M=8;N=8;K=8",
                vary={"dtype": "fp32", "layout": "rrr"},
                measuring=kc.Measuring(**{name: 0}),
            )


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.csv", "m_size,k_size,n_size,num_cores,duration\n640,32,32,10,1849.0\n", "ttnn-csv"),
        ("b.txt", '{"numerical_features": ["m"], "name": "mm"}\nm,k,n\n', "autoheuristic"),
        ("c.json", '{"device_name": "x", "tune_params_keys": ["a"], "cache": {}}', "kernel-tuner"),
        ("d.csv", "in_grid,out_grid,group,coef,intercept\n", "reshard-lines"),
        ("e.log", 'Shape 0: M=1\n{"name": "gemm", "perf_result": {}}\n', "ck-tile"),
    ],
)
def test_a_format_is_guessed_from_the_first_lines(tmp_path, name, text, format):
    """Each known format is told by what only it has."""
    from kerncast.data.importing import recognised

    (tmp_path / name).write_text(text)
    assert recognised([tmp_path / name]) == format


def test_a_file_of_no_known_format_is_refused_with_the_list(tmp_path):
    """A table of unknown columns asks for a mapping, anything else for its format."""
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(kc.InvalidValue, match="`mapping`"):
        kc.read(tmp_path / "t.csv")
    (tmp_path / "t.bin").write_bytes(b"\x00\x01")
    with pytest.raises(kc.InvalidValue, match="name its `file_format`"):
        kc.read(tmp_path / "t.bin")
    (tmp_path / "x.csv").write_text("m_size,k_size,n_size,num_cores,duration\n640,32,32,10,1849.0\n")
    dataset = kc.read(tmp_path / "x.csv", device="wormhole_b0")
    assert (dataset.rows, Path(dataset.path).exists()) == (1, True)
