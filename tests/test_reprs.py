"""How objects show themselves: the facts in a line or a table, HTML that no label can break, frames and figures."""

import json
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import polars as pl
import pytest

import kerncast
from kerncast.answering.dispatch import Dispatcher
from kerncast.answering.selector import Selector
from kerncast.core.io.html import Markup, escape, facts, table
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import NotFound
from kerncast.evaluating import Evaluation, compare, evaluate
from kerncast.learning.metrics import Figures
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.registry import OPS
from kerncast.measuring.sweeping.selection import Selection
from kerncast.measuring.sweeping.sweep import Slice, Sweep
from kerncast.models.model import Model
from kerncast.native.tiers.build import plain_tiers
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

RECIPE = Recipe("gbdt", {"trees": 15, "library_trees": 4, "leaves": 7}, folds=2)
SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}
TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "svg", "line", "text", "polyline", "details",
        "summary", "pre"}  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><b>",
    "'; <!-- ",
    "\x1b[31mred\x1b[0m",
    "&lt;",
]


class Checked(HTMLParser):
    """Reads HTML as a browser does: tags must be ours, closed in order, and carry no code."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.words = [], []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        assert not [name for name, _ in attributes if name.startswith("on") or name in ("href", "src")]
        self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self):
        return " ".join(self.words)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reprs")
    synthetic_dataset(folder / "d")
    train(folder / "d", folder / "m", RECIPE)
    return folder


@pytest.fixture(scope="module")
def found(home):
    return evaluate(home / "m", home / "d", split="problem")


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A dataset and a model whose labels a stranger wrote."""
    folder = tmp_path_factory.mktemp("strange")
    entries = {
        f"{size},{label}": {"block_size_x": size, "mode": label, "time": 1.0 + 0.1 * place + size / 64}
        for place, label in enumerate(HOSTILE)
        for size in (16, 32, 64, 128)
    }
    cache = {"device_name": "<i>Some</i> GPU", "kernel_name": "blur", "problem_size": [1024, 512], "objective": "time",
             "tune_params_keys": ["block_size_x", "mode"], "tune_params": {}, "cache": entries}  # fmt: skip
    (folder / "cache.json").write_text(json.dumps(cache))
    import_files("kernel-tuner", [folder / "cache.json"], folder / "d", ImportOptions())
    train(folder / "d", folder / "m", RECIPE)
    return folder


def test_declarations_name_their_parameters():
    op, family = OPS.get("gemm"), family_named("gemm/cpu")
    assert repr(op).startswith(
        "Op(gemm; M, N, K, split_k, batch, dtype, layout, lda, ldb, ldc, bias, activation): matrix multiplication"
    )
    assert repr(family).startswith("Family(gemm/cpu; configs of kernel, vector_bytes, mr")
    assert "problems also have threads" in repr(family)
    assert "nothing to choose" in repr(family_named("eltwise_unary/single"))
    lines = repr(family.config).splitlines()
    assert lines[0] == "Space(configs of gemm/cpu; 14 parameters, 18 constraints)"
    assert any(line.split()[:4] == ["nv", "one", "of", "1,"] for line in lines)
    device = devices.get("a100")
    assert repr(device).startswith("Device(a100: NVIDIA A100-SXM4-80GB, gpu; 16 numbers; peak TFLOPS fp64 19.5,")
    assert "compute units" in Checked(device._repr_html_()).text
    assert "leave split_k at 1" in Checked(family._repr_html_()).text
    for item in (op, op.problem, family.config):
        assert Checked(item._repr_html_()).words


def test_a_dataset_says_rows_problems_configs_statuses_and_noise(home):
    dataset = kerncast.Dataset.open(home / "d")
    title, _, line = repr(dataset).splitlines()
    assert title == f"Dataset({home / 'd'}; 400 rows)"
    assert line.split() == ["gemm/triton", "400", "40", "10", "ok", "360,", "out_of_memory", "40", "a100", line.split()[-1]]
    assert 0 < float(line.split()[-1].removesuffix("%")) < 100
    assert {"gemm/triton", "ok 360, out_of_memory 40"} <= set(Checked(dataset._repr_html_()).words)


def test_a_damaged_or_empty_dataset_is_still_shown(home, tmp_path):
    assert repr(kerncast.Dataset.create(tmp_path / "empty")) == f"Dataset({tmp_path / 'empty'}; 0 rows)"
    synthetic_dataset(tmp_path / "d")
    dataset = kerncast.Dataset.open(tmp_path / "d")
    (tmp_path / "d" / dataset.contents.parts[0].file).write_bytes(b"PAR1")
    assert "it cannot be read" in repr(dataset)
    assert "it cannot be read" in Checked(dataset._repr_html_()).text


def test_a_dataset_gives_frames(home, monkeypatch):
    dataset = kerncast.Dataset.open(home / "d")
    assert dataset.frame(where=["status=ok"]).equals(dataset.read(where=["status=ok"]))
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    columns = dataset.to_pandas(where=["status=ok"])
    assert (list(columns), len(columns["time_ns"])) == (dataset.frame().columns, 360)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotFound, match=r"needs the package pandas, which is not installed"):
        dataset.to_pandas()


def test_a_model_says_what_it_is_for_and_how_good_it_is(home):
    model = Model.load(home / "m")
    mean = model.evaluation["overall"]["efficiency_mean"]["value"]
    told = "gemm/triton, gbdt, on a100; 400 vectors, 40 problems, 10 configs"
    assert repr(model) == f"Model({told}; mean efficiency {mean:.1%} held out; {home / 'm'})"
    assert isinstance(model.figures, Figures)
    assert model.figures.efficiency.mean.value == mean
    card = Checked(model._repr_html_())
    assert {"where it answers", "efficiency, mean", "best_single"} <= set(card.words)


def test_a_selector_an_answer_a_dispatcher_and_a_sweep_say_what_they_do(home):
    model = Model.load(home / "m")
    selector = Selector(model, tiers=plain_tiers(model), compile=False)
    assert repr(selector) == "Selector(gemm/triton on a100; 9 configs, portfolio of 9, interpreted; asks the portfolio tier)"
    answer = selector.select(SHAPE, "full")
    assert repr(answer).startswith("Answer(ok: problem M=1000 N=512 K=768")
    assert "; config kind=" in repr(answer)
    assert "tier full)" in repr(answer)
    assert "expected efficiency" in Checked(answer._repr_html_()).text
    refused = repr(selector.select({**SHAPE, "M": 10**8}))
    assert refused.startswith("Answer(out_of_range: problem M=100000000")
    assert "the fallback is the library" in refused
    dispatcher = Dispatcher("gemm/cpu", threads=2)
    assert repr(dispatcher) == "Dispatcher(gemm/cpu on cpu, threads=2; measures; problems answered: none yet)"
    problems = pl.DataFrame([SHAPE, {**SHAPE, "M": 64}])
    sweep = Sweep(model.family, model.device, problems, Selection(per_problem=5), part=Slice(1, 2), max_vectors=9)
    told = "Sweep(gemm/triton on a100; 2 problems, a sample of 5 configs of each, at most 9 vectors, slice 1/2"
    assert repr(sweep) == f"{told}; seed 0)"
    count = sweep.count()
    assert repr(sweep) == f"{told}, {count} vectors; seed 0)"


def test_an_evaluation_prints_as_the_command_line_does(home, found, run):
    code, out, _ = run("evaluate", home / "m", home / "d", "--split", "problem")
    assert (code, out.strip("\n")) == (0, str(found))
    assert repr(found) == str(found)
    code, out, _ = run("evaluate", home / "m", home / "d", "--split", "problem", "--json", "--worst", "20")
    assert json.loads(out) == json.loads(json.dumps(found.as_json()))


def test_an_evaluation_is_typed_and_frozen(found):
    plain = found.as_json()
    mean = plain["overall"]["efficiency_mean"]
    assert (found.overall.efficiency.mean.value, found.overall.efficiency.mean.interval) == (
        mean["value"], (mean["lower"], mean["upper"]),
    )  # fmt: skip
    assert found.overall.runtime.coverage.value == plain["overall"]["coverage_90"]["value"]
    assert (found.n, found.split, found.family, found.devices) == (40, "problem", "gemm/triton", ("a100",))
    assert found.baselines["roofline"].efficiency is None
    assert found.baselines["random"].efficiency.p10.value == plain["baselines"]["random"]["efficiency_p10"]["value"]
    assert [line.efficiency for line in found.worst] == [line["efficiency"] for line in plain["worst"]]
    assert (found.slices[0].n, found.top_k[0].k, found.tiers, found.against) == (plain["slices"][0]["n_problems"], 1, (), None)
    plain["overall"]["n_problems"] = 0
    assert found.as_json()["overall"]["n_problems"] == 40
    with pytest.raises(AttributeError):
        found.problems = None
    with pytest.raises(TypeError):
        found.worst[0].problem["M"] = 1


def test_an_evaluation_shows_its_tiles_and_its_curve(found):
    page = found._repr_html_()
    words = Checked(page).text
    for text in (
        "mean efficiency",
        "P10 efficiency",
        "MAPE of the time",
        "noise ceiling",
        "all figures",
        "the best single config",
    ):
        assert text in words
    assert page.count("<polyline") == 1
    assert len(page.split('<polyline points="')[1].split('"')[0].split()) == found.n


def test_an_evaluation_gives_plotly_figures(found):
    """By name; printed, they are named and not spelled out."""
    figures = found.plot()
    assert repr(figures).startswith("Charts(efficiency-curve, ")
    assert {"efficiency-curve", "top-k", "predicted-measured"} <= set(figures)
    curve = found.plot("efficiency-curve")
    assert (type(curve).__name__, len(curve.data[0].x), curve.data[0].line.color) == ("Figure", found.n, "#3454d1")
    assert "@" not in str([trace.line.color for figure in figures.values() for trace in figure.data if "line" in trace])
    with pytest.raises(NotFound, match="unknown chart of this evaluation 'curve'"):
        found.plot("curve")


def test_a_verdict_prints_as_the_command_line_does(home, run):
    found = compare(home / "m", home / "m", home / "d", include_seen=True)
    code, out, _ = run("compare", home / "m", home / "m", home / "d", "--include-seen")
    assert (code, out.strip("\n"), repr(found)) == (0, str(found), str(found))
    assert (found.verdict, found.n, found.measure, found.worst_drop) == ("SAME", 40, "efficiency", 0.0)
    assert found.old == found.new
    assert (found.old.mean, found.mean_difference.value) == (found.as_json()["old"]["mean"], 0.0)
    assert found.as_json()["reasons"] == list(found.reasons)
    assert "40 problems" in Checked(found._repr_html_()).words


def test_an_explanation_prints_as_the_command_line_does(home, run):
    """The tables below the answer, as text and in a notebook."""
    pick = kerncast.Selector(home / "m", tiers="full", tier="full", compile=False, progress=False)
    found = pick.explain(pick(SHAPE))
    code, out, _ = run("select", home / "m", *(f"{name}={value}" for name, value in SHAPE.items()), "--explain")
    assert (code, out.split("\n\n", 1)[1].strip("\n")) == (0, str(found))
    words = Checked(found._repr_html_()).text
    for text in ("what mattered most", "the nearest measured problems", "runners-up of the full tier", "gemm: why kind="):
        assert text in words


def test_hostile_labels_stay_text_everywhere(strange):
    """No tag, no attribute and no colour of a stranger's reaches a notebook or a terminal."""
    dataset, model = kerncast.Dataset.open(strange / "d"), Model.load(strange / "m")
    found = evaluate(model, dataset.path, split="config")
    problem = {"kernel": "blur", "size_x": 1024, "size_y": 512}
    answers = [model.predict(problem, {"block_size_x": 16, "mode": label}) for label in HOSTILE]
    pick = kerncast.Selector(model, tiers="full", compile=False)
    why = pick.explain(pick(problem))
    assert any(label in Checked(why._repr_html_()).text for label in HOSTILE)
    shown = [dataset, model, found, why, model.device, model.family, model.family.op, model.family.config, *answers]
    for item in shown:
        assert "\x1b" not in repr(item)
        assert Checked(item._repr_html_()).words
    texts = [Checked(answer._repr_html_()).text for answer in answers]
    assert f"mode={HOSTILE[0]}" in texts[0]
    assert f"mode={HOSTILE[1]}" in texts[1]
    assert "<i>Some</i> GPU" in Checked(model.device._repr_html_()).text
    hostile = found.extended(family=HOSTILE[1], baselines={HOSTILE[0]: found.as_json()["baselines"]["random"]})
    assert HOSTILE[1] in Checked(hostile._repr_html_()).text
    for figure in found.plot().values():
        assert "<script" not in figure.to_json().replace("\\u003c", "<")


def test_a_family_with_nothing_to_choose_shows_its_times():
    """No efficiency, so no curve: the tiles are those of the time."""
    card = {"n_problems": 2, "mape": {"value": 0.1, "lower": None, "upper": None}}
    empty = dict.fromkeys(("efficiency_mean", "median_ape", "ape_p95", "rmsre", "r2", "r2_log", "coverage_90"))
    summary = {
        "model": "m", "kind": "gbdt", "op": "exp", "family": "exp/single", "devices": ["x"], "datasets": [], "split": None,
        "problems_seen_in_training": 0, "includes_training_data": False, "overall": {**empty, **card}, "baselines": {},
        "noise_floor": None, "pooled": None, "slices": [], "worst": [], "worst_predictions": [],
        "rates": {"tflops": None, "bandwidth_gb_s": None},
    }  # fmt: skip
    found = Evaluation(summary, pl.DataFrame(), pl.DataFrame())
    assert (found.overall.efficiency, found.overall.runtime.mape.interval) == (None, None)
    assert "10.0 %" in Checked(found._repr_html_()).text
    assert "polyline" not in found._repr_html_()
    assert str(found).startswith("predicted against measured time (2 problems)")


def test_html_escapes_text_and_attributes():
    assert escape("<a href=\"x\" class='y'>&\x00") == "&lt;a href=&quot;x&quot; class=&#x27;y&#x27;&gt;&amp;\ufffd"
    page = table(("<i>",), [("<b>",), (None,), (Markup("<span>s</span>"),)], "<u>") + facts([("<i>", "<b>")])
    assert Checked(page).words == ["<u>", "<i>", "<b>", "s", "<i>", "<b>"]
