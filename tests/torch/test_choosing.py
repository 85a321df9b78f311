"""torch.compile with a model that chooses: which kernels end in the code, and when it keeps out."""

import copy
import json
import pickle
import threading
from types import SimpleNamespace

import pytest

import kerncast.torch as ki
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.torch import reporting
from kerncast.torch.chooser import Chooser
from kerncast.torch.reporting import Report

pytest.importorskip("torch", reason="needs torch")

import torch._inductor.config as config
from torch._inductor.choices import InductorChoices

import torch

# torch warns about itself.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}:torch") for kind in ("DeprecationWarning", "UserWarning", "FutureWarning")
]
X = torch.ones(16, 32)
HALF = X.to(torch.bfloat16)


@pytest.fixture(autouse=True)
def _new_report():
    reporting.forget()


def linear(columns=48, bias=True, activation=torch.relu):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(32, columns, bias=bias)

        def forward(self, x):
            return activation(self.linear(x))

    torch.manual_seed(0)
    return Layer().eval()


@pytest.fixture
def cached(monkeypatch):
    """Inductor caches graphs with bf16 weights, as on CPUs without bf16; weights that MKL or oneDNN has packed it cannot."""
    from torch._inductor.fx_passes import mkldnn_fusion

    monkeypatch.setattr(mkldnn_fusion, "is_mkldnn_bf16_supported", lambda device: False)


@pytest.mark.usefixtures("cached")
def test_each_model_chooses_for_its_own_compilations(made_up, compiling):
    """A, then B, then stock, then A again in one process, with Inductor's caches on: each runs its own kernel."""
    layer, a, b = linear().to(HALF.dtype), ki.choices(made_up((4, 16))), ki.choices(made_up((6, 8)))
    assert compiling(layer, HALF, inductor_choices_class=a).kernels == [(4, 16)]
    assert compiling(layer, HALF, inductor_choices_class=b).kernels == [(6, 8)]
    stock = compiling(layer, HALF)
    assert stock.kernels not in ([(4, 16)], [(6, 8)])
    assert compiling(layer, HALF, inductor_choices_class=a).kernels == [(4, 16)]
    with ki.enable(made_up((6, 8))):
        assert compiling(layer, HALF).kernels == [(6, 8)]
    assert compiling(layer, HALF).kernels == stock.kernels
    assert config.inductor_choices_class is None


@pytest.mark.usefixtures("cached")
def test_without_the_key_a_removed_model_would_still_choose(made_up, compiling, monkeypatch):
    """What keeps compilations apart is the uuid: with an empty one, the cache replays the kernel of another model."""
    layer, a, b = linear().to(HALF.dtype), ki.choices(made_up((4, 16))), ki.choices(made_up((6, 8)))
    assert a.uuid() != b.uuid()
    monkeypatch.setattr(type(a), "uuid", lambda self: "same")
    assert compiling(layer, HALF, inductor_choices_class=a).kernels == [(4, 16)]
    replayed = compiling(layer, HALF, inductor_choices_class=b)
    assert (replayed.kernels, replayed.offered) == ([(4, 16)], [])


def test_the_report_says_what_was_decided(made_up, compiling):
    """One decision per product: candidates, what is left, the prediction; it prints, and is JSON."""
    compiling(linear(), X, inductor_choices_class=ki.choices(made_up((4, 16))))
    (found,) = ki.report().decisions
    assert (found.status, found.kept, found.config["mr"], found.config["nr"]) == ("chosen", 1, 4, 16)
    assert {name: found.problem[name] for name in "MNK"} == {"M": 16, "N": 48, "K": 32}
    assert found.op == "_mkl_linear"
    assert found.candidates == 8
    assert found.predicted_ns > 0
    assert "1 chosen" in repr(ki.report())
    assert ki.report().as_json()["decisions"][0]["chosen"].startswith("kind=tile mr=4 nr=16")


def test_reports_of_others_are_read_with_care(tmp_path, caplog):
    """Numbers and words that no report has are refused by name, text is escaped; an unwritable place is a line of the log."""
    decision = {"op": "mm\x1b[31m", "family": "gemm/triton", "problem": {"M\n": 1}, "candidates": 8, "kept": 2, "chosen": "a",
                "config": None, "predicted_ns": None, "status": "timed", "reason": "top_k=2", "seconds": 0.1}  # fmt: skip
    file = tmp_path / "report.json"

    def read(**changed):
        file.write_text(json.dumps({"decisions": [{**decision, **changed}]}))
        return Report.read(file)

    assert "\x1b" not in repr(read())
    assert "top_k=2" in repr(read())
    for name, value in (("candidates", 10**400), ("kept", -1), ("seconds", 1e300), ("predicted_ns", -1.0), ("status", "bad")):
        with pytest.raises(BadFile, match="is no report"):
            read(**{name: value})
    reporting._write(tmp_path / "none" / "report.json")
    assert "KERNCAST_REPORT is set, but no report was written" in caplog.text


def test_the_library_is_kept_unless_the_model_is_sure(made_up, compiling):
    """Preferred by far: ATen alone, and no C++ kernel is rendered. Nearly as good as a tile: both are left to be timed."""
    favourite = compiling(linear(), X, inductor_choices_class=ki.choices(made_up("aten")))
    assert (favourite.kernels, favourite.offered) == (["aten"], [1])
    several = compiling(linear(), X, inductor_choices_class=ki.choices(made_up((4, 16)), top_k=3))
    assert several.offered == [3]
    unsure = Chooser(made_up((4, 16)))
    object.__setattr__(unsure.confidence, "error", 10.0)
    picked = unsure.decide("mm", {"M": 16, "N": 48, "K": 32, "dtype": "fp32", "layout": "rcr", "threads": 1}, library=True)
    assert (picked.library, len(picked.configs), picked.decision.status) == (True, 1, "timed")


def test_only_what_inductor_offers(made_up, compiling):
    """`widen=False` ranks Inductor's own C++ kernel and ATen's, and renders no other."""
    factory = ki.choices(made_up("default"), widen=False)
    found = compiling(linear(), X, inductor_choices_class=factory)
    assert found.kernels == compiling(linear(), X, max_autotune_gemm_backends="CPP").kernels
    assert ki.report().decisions[0].candidates == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ask: ask(columns=4000), "N=4000 is out of range"),
        (lambda ask: ask(software={"torch": "1.0", "isa": "avx2", "compiler": "g++"}), "trained with torch 1.0"),
        (lambda ask: ask(x=torch.ones(16, 32, dtype=torch.float16)), "float16"),
    ],
)
def test_it_keeps_out_where_it_does_not_know(made_up, compiling, change, reason):
    """Out of range, other software, another dtype: stock autotuning happens, and the report says why."""

    def ask(columns=48, x=X, **options):
        layer, given = linear(columns).to(x.dtype), made_up((4, 16), **{k: tuple(v.items()) for k, v in options.items()})
        return compiling(layer, x, inductor_choices_class=ki.choices(given)).kernels, compiling(layer, x).kernels

    chosen, stock = change(ask)
    assert chosen == stock
    assert reason in ki.report().decisions[0].reason


def test_another_instruction_set_is_noticed_while_a_program_runs(made_up):
    """`cpp.simdlen` may change after the first question: the model keeps out, recorded times say so, and it comes back."""
    from kerncast.torch.hooks import _not_this_cpu
    from kerncast.torch.observing import software

    chooser, isa = Chooser(made_up((4, 16))), software("cpu")["isa"]
    assert _not_this_cpu(chooser) is None
    with config.patch({"cpp.simdlen": 1}):
        assert _not_this_cpu(chooser).startswith(f"the model was trained with isa {isa}, and this is ")
        assert software("cpu")["isa"] != isa
    assert _not_this_cpu(chooser) is None


def test_choices_that_cannot_be_looked_into_are_left_alone(made_up, caplog):
    """The function that Inductor calls before it times never raises: that would end the compilation."""
    from kerncast.torch.hooks import keep_picked

    odd = [3, object()]  # without a `__dict__`
    with ki.enable(made_up((4, 16))):
        assert keep_picked(odd) is odd
    assert len([record for record in caplog.records if "left a choice to Inductor" in record.message]) == 1


def test_a_model_of_other_software_may_be_used_anyway(made_up, compiling):
    """`any_software=True` is the user's word that the model still holds."""
    model = made_up((4, 16), software=tuple({"torch": "1.0"}.items()))
    assert compiling(linear(), X, inductor_choices_class=ki.choices(model, any_software=True)).kernels == [(4, 16)]


def test_dynamic_shapes_are_left_to_inductor(made_up, compiling):
    """A size that is only known at run time has no best kernel."""
    with config.patch(freezing=True):
        torch._dynamo.mark_dynamic(x := torch.ones(16, 32), 0)
        compiling(linear(), x, inductor_choices_class=ki.choices(made_up((4, 16))))
    assert "dynamic" in ki.report().decisions[0].reason


def test_an_exception_means_stock_behaviour(made_up, compiling, monkeypatch, caplog):
    """Whatever goes wrong in choosing is one line in the log, and the compilation goes on."""

    def broken(*arguments, **options):
        raise RuntimeError("planted")

    layer = linear()
    stock = compiling(layer, X).kernels
    monkeypatch.setattr(Chooser, "decide", broken)
    assert compiling(layer, X, inductor_choices_class=ki.choices(made_up((4, 16)))).kernels == stock
    assert "planted" in caplog.text


def test_the_switch_turns_it_off(made_up, compiling, monkeypatch):
    """KERNCAST_DISABLE=1 wins over everything, and its kernels are not those of the cache."""
    layer, a = linear(), ki.choices(made_up((4, 16)))
    assert compiling(layer, X, inductor_choices_class=a).kernels == [(4, 16)]
    monkeypatch.setenv("KERNCAST_DISABLE", "1")
    assert compiling(layer, X, inductor_choices_class=a).kernels == compiling(layer, X).kernels


def test_turned_off_nothing_is_opened(monkeypatch, tmp_path):
    """A program whose model is damaged or gone can still be run: KERNCAST_DISABLE=1 wins before the model is looked for."""
    from kerncast.torch.hooks import active

    with pytest.raises(KerncastError), ki.enable(tmp_path):
        pass
    monkeypatch.setenv("KERNCAST_DISABLE", "1")
    with ki.enable(tmp_path) as factory:
        assert (active(), config.max_autotune, factory.uuid()[-4:]) == (None, False, ":off")
    assert "kerncast" in factory().uuid()


def test_what_cannot_choose_is_refused_by_name(made_up):
    """A model of another family, a value that is no model, an empty list, two for one family, an unknown option."""
    from kerncast.torch.enabling import _fitting
    from kerncast.torch_entry import _sorted_options

    other = SimpleNamespace(family=SimpleNamespace(id="gemm/cpu"), path="mine")
    with pytest.raises(InvalidValue, match=r"mine is a model of gemm/cpu, and torch.compile has kernels of gemm/inductor_cpp"):
        _fitting([made_up((4, 16)), other])
    for given, rule in (
        (5, "a model was expected, got int"),
        ([], "at least one model"),
        ([made_up((4, 16)), made_up((6, 8))], "2 of gemm/inductor_cpp were given"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            ki.choices(given)
    with pytest.raises(NotFound, match="'topk': did you mean 'top_k'"):
        _sorted_options({"topk": 3})
    assert _sorted_options({"model": "a", "max-autotune": True, "cpp.simdlen": 1}) == (
        {"model": "a"},
        {"max_autotune": True, "cpp.simdlen": 1},
    )


def test_a_block_turns_max_autotune_on(made_up):
    """Without it Inductor offers one kernel, and there would be nothing to choose; afterwards it is as it was."""
    assert not config.max_autotune
    with ki.enable(made_up((4, 16))):
        assert config.max_autotune
    assert not config.max_autotune


class Theirs(InductorChoices):
    """A handler of another package, which needs an argument and keeps something."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def uuid(self):
        return f"theirs-{self.kept}"

    def triton_kernel_kwargs(self, *arguments, **options):
        return self.kept


def test_another_handler_stays_in_charge_of_the_rest(made_up, compiling):
    """A handler that was installed before is below ours: its key is part of ours, and it keeps its methods and its state."""
    with config.patch(inductor_choices_class=lambda: Theirs("state")):
        factory = ki.choices(made_up((4, 16)))
    assert factory.uuid() == factory().uuid() != ki.choices(made_up((4, 16))).uuid()
    assert "theirs-state" in factory.uuid()
    assert isinstance(factory(), Theirs)
    assert factory().triton_kernel_kwargs() == "state"
    assert compiling(linear(), X, inductor_choices_class=factory).kernels == [(4, 16)]


def test_a_factory_is_found_again_by_copies_and_processes(made_up):
    """Inductor copies its settings and sends them to workers."""
    factory = ki.choices(made_up((4, 16)), top_k=2)
    assert copy.deepcopy(factory) is factory
    assert pickle.loads(pickle.dumps(factory)).uuid() == factory.uuid()


def test_threads_choose_for_themselves(made_up):
    """Two threads with two models at once, a third without: settings are those of the thread."""
    from kerncast.torch.hooks import active

    found, met = {}, threading.Barrier(3)

    def run(name, model):
        if model is None:
            met.wait(60)
            found[name] = active()
            return
        with ki.enable(model) as factory:
            met.wait(60)
            found[name] = active() is factory

    tasks = [("a", made_up((4, 16))), ("b", made_up((6, 8))), ("none", None)]
    threads = [threading.Thread(target=run, args=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {"a": True, "b": True, "none": None}


@pytest.mark.usefixtures("cached")
def test_without_the_setting_a_block_still_chooses(made_up, compiling, monkeypatch):
    """torch before 2.10 has no setting and before 2.13 no key in its caches: `enable` chooses, with the graph cache off."""
    from kerncast.torch import enabling, hooks

    for module in (hooks, enabling):
        monkeypatch.setattr(module, "has_setting", lambda: False)
        monkeypatch.setattr(module, "keys_caches", lambda: False)
    layer = linear().to(HALF.dtype)
    with ki.enable(made_up((4, 16))):
        assert not config.fx_graph_cache
        assert compiling(layer, HALF).kernels == [(4, 16)]
    assert config.fx_graph_cache
    assert compiling(layer, HALF).kernels != [(4, 16)]


def test_arguments_of_a_later_torch_are_passed_on(made_up, monkeypatch):
    """What a later version adds to the methods before which the hooks stand reaches them; a positional one means: keep out."""
    from kerncast.torch import hooks

    seen = []

    class Template:
        @classmethod
        def add_choices(cls, choices, layout, input_nodes, *rest, **options):
            seen.append((rest, options))

    class Handler:
        def _finalize_template_configs(self, *arguments, **named):
            seen.append((arguments, named))
            return ["stock"]

        def get_flex_attention_fwd_configs(self, *arguments, **named):
            seen.append((arguments, named))
            return ["stock"]

    hooks._before_cpp_template(Template)
    hooks._before_triton_templates(Handler)
    nodes = [SimpleNamespace(get_dtype=lambda: torch.float64)] * 2
    with ki.enable(made_up((4, 16))):
        Template.add_choices([], SimpleNamespace(dtype=torch.float64), nodes, later="option")
        Template.add_choices([], None, nodes, "positional")
        assert Handler()._finalize_template_configs({}, None, [], "mm", None, later=1) == ["stock"]
        assert Handler().get_flex_attention_fwd_configs(64, torch.float16, later=1) == ["stock"]
    assert [options.get("later") for _, options in seen] == ["option", None, 1, 1]


def test_a_product_is_described_with_its_epilogue():
    """Bias, activation, gaps between rows, symbols: as the operator and its users say."""
    from kerncast.torch.describing import problem_of

    def operand(sizes, strides=None, dtype=torch.float32):
        return SimpleNamespace(get_size=lambda: sizes, get_dtype=lambda: dtype, maybe_get_stride=lambda: strides)

    def operator(name, *users, args=()):
        target = SimpleNamespace(overloadpacket=SimpleNamespace(__name__=name))
        return SimpleNamespace(target=target, users=dict.fromkeys(users), args=args)

    class Operator(SimpleNamespace):
        __hash__ = object.__hash__

    def user(name, *users, by=None):
        return Operator(**vars(operator(name, *users, args=() if by is None else (0, by))))

    out, x, w = SimpleNamespace(dtype=torch.float32), operand([16, 32], [40, 1]), operand([48, 32])
    given = {"trans_w": True, "input_indices": [0, 2]}
    bare = {"M": 16, "N": 48, "K": 32, "dtype": "fp32", "layout": "rcr", "threads": 2, "lda": 40}
    assert problem_of(out, [x, None, w], 2, None, **given) == bare
    gelu = user("view", user("mul", by=0.5), user("mul", by=0.70710678))
    node = operator("_mkl_linear", gelu, args=(0, 0, 0, "bias", 16))
    assert problem_of(out, [x, None, w], 2, node, **given) == {**bare, "bias": True, "activation": "gelu"}
    fused = operator("_linear_pointwise", args=(0, 0, None, "swish", [], ""))
    assert problem_of(out, [x, None, w], 2, fused, **given) == {**bare, "activation": "silu"}
    for users in ((user("relu"), user("relu")), (user("mul"), user("mul", by=0.5))):
        assert problem_of(out, [x, None, w], 2, operator("mm", *users), **given) == bare
    assert "dynamic" in problem_of(out, [operand(["s0", 32]), None, w], 2, None, **given)
    assert "contiguous" in problem_of(out, [operand([16, 32], [1, 16]), None, w], 2, None, **given)
    assert "float64" in problem_of(out, [operand([16, 32], dtype=torch.float64), None, w], 2, None, **given)
    assert "dimensions" in problem_of(out, [operand([2, 16, 32]), None, w], 2, None, **given)


def test_chosen_kernels_compute_what_the_module_does(made_up, tmp_path):
    """Really compiled, on two threads, with bias and activation: results are right, and the report is written."""
    from torch._inductor.utils import fresh_cache

    torch.set_num_threads(2)
    torch._dynamo.reset()
    layer = linear(activation=torch.nn.functional.gelu)
    x = torch.randn(16, 32)
    with fresh_cache(), torch.no_grad(), config.patch(freezing=True, compile_threads=1):
        compiled = torch.compile(layer, backend="kerncast", options={"model": made_up((4, 16))}, dynamic=False)
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)
    torch._dynamo.reset()
    (found,) = ki.report().decisions
    assert (found.status, found.config["mr"], found.problem["threads"]) == ("chosen", 4, 2)
    file = tmp_path / "decided.json"
    file.write_text(json.dumps(ki.report().as_json()))
    assert Report.read(file).decisions[0].chosen == found.chosen


@pytest.mark.needs("make soak")
def test_backward_and_threads_compute_the_same(made_up):
    """With gradients, with another size, and two threads that compile at once with two models: all results are right."""
    from torch._inductor.utils import fresh_cache

    def run(model, found):
        layer, x = linear(), torch.randn(16, 32)
        with ki.enable(model), config.patch(max_autotune=True, freezing=False):
            compiled = torch.compile(layer)
            for rows in (16, 24):
                layer.zero_grad()
                compiled(x[:rows] if rows <= 16 else torch.cat([x, x[:8]])).sum().backward()
            grad = layer.linear.weight.grad.clone()
            layer.zero_grad()
            layer(torch.cat([x, x[:8]])).sum().backward()
            found.append(torch.allclose(grad, layer.linear.weight.grad, atol=1e-4))

    found = []
    torch._dynamo.reset()
    with fresh_cache():
        threads = [threading.Thread(target=run, args=(made_up(tile), found)) for tile in ((4, 16), (6, 8))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    assert found == [True, True]
