"""Arguments of a wrong kind, and names that are nearly right: each refusal says the rule, the value and the next step."""

import socket
import sys

import polars as pl
import pytest
from tests.support.needs import require

import kerncast as kc
from kerncast.app.api.arguments import connected
from kerncast.testing.models import synthetic_dataset, synthetic_rows

SMALL = {"kind": "roofline", "folds": 2, "threads": 1}
PROBLEM = {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("refusals") / "data"
    synthetic_dataset(place, synthetic_rows(problems=12))
    return kc.open(place)


@pytest.fixture(scope="module")
def model(data):
    return kc.train(data, **SMALL)


def test_a_name_or_label_that_is_nearly_right_is_suggested(model):
    """Whatever its case; a dtype may have the spelling of another tool where rows and problems are read."""
    with pytest.raises(kc.InvalidValue, match="'m': did you mean 'M'"):
        model.predict({"m" if name == "M" else name: value for name, value in PROBLEM.items()})
    with pytest.raises(kc.InvalidValue, match=r"dtype must be .*got 'torch.bfloat'"):
        model.predict({**PROBLEM, "dtype": "torch.bfloat"})
    assert model.predict({**PROBLEM, "dtype": "torch.float16"}) == model.predict({**PROBLEM, "dtype": "fp16"})
    with pytest.raises(kc.InvalidValue, match=r"got 'torch.float32': did you mean 'fp32'\?"):
        kc.collect("gemm/cpu", problems="grid:M=8;N=8;K=8", vary={"dtype": "torch.float32"})


def test_a_cluster_at_whose_address_nothing_listens_is_refused_at_once():
    """Ray itself would try again for minutes."""
    require("ray")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with (
            pytest.raises(kc.KerncastError, match=rf"nothing answers at .*:{port}.*ray start --head"),
            connected(f"127.0.0.1:{port}"),
        ):
            pass


def test_a_frame_keeps_foreign_columns_but_no_parameter_in_another_case(model):
    """`split_K` would leave `split_k` at its default; beside the right name it is a column like any other."""
    frame = pl.DataFrame([PROBLEM]).with_columns(mine=pl.lit("kept"))
    assert model.predict(frame)["mine"].to_list() == ["kept"]
    with pytest.raises(kc.InvalidValue, match=r"'split_K' .*did you mean 'split_k'"):
        model.predict(frame.with_columns(split_K=2))
    assert "split_K" in model.predict(frame.with_columns(split_K=2, split_k=1)).columns


def test_a_table_in_place_of_a_dataset_names_what_reads_it(tmp_path):
    """`kerncast.read`, as `kerncast.open` says."""
    (tmp_path / "clean.csv").write_text("M,N,K\n1,2,3\n")
    with pytest.raises(kc.KerncastError, match=r"kerncast\.read"):
        kc.train(tmp_path / "clean.csv")


def test_a_store_says_where_it_is_and_what_it_holds(tmp_path):
    """Not an address in memory."""
    assert repr(kc.Store.open(tmp_path)) == f"Store({tmp_path}; 0 models)"


FRAME = pl.DataFrame([PROBLEM])
TILE = {"kind": "triton", "BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4}
WRONG_KINDS = {
    "problems as numbers": (lambda d, m: kc.collect("gemm/cpu", problems=[8, 8, 8]), "path of a table.* got int"),
    "problems as a frame": (lambda d, m: kc.collect("gemm/cpu", problems=FRAME), "path of a table.* got DataFrame"),
    "configs as a number": (lambda d, m: kc.collect("gemm/cpu", problems="llm", configs=6), "sample:N.* got '6'"),
    "samples as a text": (
        lambda d, m: kc.collect("gemm/cpu", problems="llm", measuring=kc.Measuring(samples="3")),
        "whole number.* got '3'",
    ),
    "training on a frame without times": (lambda d, m: kc.train(FRAME), r"no column 'time_ns': .*`kerncast\.read\(frame"),
    "training on a lazy frame": (lambda d, m: kc.train(FRAME.lazy()), r"or a frame was expected, got LazyFrame"),
    "reading a frame with other columns": (lambda d, m: kc.read(FRAME), "which column is which parameter with `mapping`"),
    "a mapping that is no file": (lambda d, m: kc.read("a.csv", file_format="csv", mapping={"M": "m"}), "TOML file .*got dict"),
    "a dataset as the model": (lambda d, m: kc.evaluate(d, m), r"got Dataset: train one with `kerncast\.train`"),
    "a model as the data": (lambda d, m: kc.compare(m, m, m), "a dataset, its path or a frame was expected, got Model"),
    "exporting a dataset": (
        lambda d, m: kc.export(d, to="blob", out="nowhere/at/all"),
        "`to=blob` writes a model, and .* is a dataset",
    ),
    "asking a dataset": (lambda d, m: kc.predict({"op": "gemm"}, model=d), "a model or its path was expected, got Dataset"),
    "asking several": (lambda d, m: kc.predict({"op": "gemm"}, model=[m, 3]), "a model or its path was expected, got int"),
    "a dtype of a frame": (
        lambda d, m: m.predict(FRAME.with_columns(dtype=pl.lit("fp17")), config=TILE),
        "dtype must be .*got 'fp17'",
    ),
    "a selector of a dataset": (lambda d, m: kc.Selector(d), "a model or its path was expected, got Dataset"),
}


@pytest.mark.parametrize("case", WRONG_KINDS)
def test_an_argument_of_a_wrong_kind_is_refused_with_the_next_step(case, data, model):
    """Never an AttributeError or a TypeError from the inside."""
    call, said = WRONG_KINDS[case]
    with pytest.raises(kc.InvalidValue, match=said):
        call(data, model)


def test_a_selector_says_which_question_takes_several_problems_or_an_answer(model):
    """A list and a frame are for `select_many`; `explain` takes an answer."""
    pick = kc.Selector(model, compile=False)
    for several in ([PROBLEM], FRAME):
        with pytest.raises(kc.InvalidValue, match="ask `select_many`"):
            pick(several)
    with pytest.raises(kc.InvalidValue, match=r"got dict: ask `explain\(pick\(problem\)\)`"):
        pick.explain(PROBLEM)


def test_without_the_extra_train_models_answer_and_what_needs_it_is_refused_first(data, tmp_path, monkeypatch):
    """An answer needs no chart and no scikit-learn; a report is refused before anything is fitted for it."""
    for name in ("jinja2", "plotly", "plotly.graph_objects", "plotly.offline", "sklearn", "sklearn.neural_network"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    model = kc.train(data, kind="gbdt", folds=2, threads=1, trees=8, bags=1)
    assert kc.Selector(model, compile=False)(**PROBLEM).status == "ok"
    assert kc.predict("gemm", {**PROBLEM, "dtype": "bf16"}, device="h100").time_ns > 0
    assert not kc.evaluate(model, data, include_seen=True).rows.is_empty()
    with pytest.raises(kc.NotFound, match=r"a report needs jinja2, not installed here: pip install 'kerncast\[train\]'"):
        kc.evaluate(model, data, report=tmp_path / "report.html")
    with pytest.raises(kc.NotFound, match=r"pip install 'kerncast\[train\]'"):
        kc.train(data, kind="mlp", folds=2, threads=1)


def test_arguments_of_the_other_kind_of_question_are_refused():
    """A JSON request has its own keys, and a question about an op none of a request's: nothing is ignored in silence."""
    request = {"op": "gemm", **PROBLEM, "device": "h100"}
    for given in ({"model": "/nowhere"}, {"strict": True}, {"compiled": False}):
        with pytest.raises(kc.InvalidValue, match=rf"`{next(iter(given))}` is for a JSON request"):
            kc.predict("gemm", PROBLEM, device="h100", **given)
    for given in ({"device": "h100"}, {"config": {"BLOCK_M": 64}}, {"family": "gemm/triton"}):
        with pytest.raises(kc.InvalidValue, match=rf"leave `{next(iter(given))}` out"):
            kc.predict(request, **given)
    with pytest.raises(kc.InvalidValue, match="'gemm' is no JSON request: if it is an op, name its `problems`"):
        kc.predict("gemm", device="h100")
