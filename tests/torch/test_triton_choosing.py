"""Triton's templates are ranked before they are rendered: torch's own heuristics and templates, without a GPU."""

from types import SimpleNamespace

import pytest
from tests.torch.gpuless import triton_on_cpu

from kerncast.core.op import Config
from kerncast.library.families.gemm_triton import config_of, triton
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.torch.chooser import ChoicePolicy, Chooser, Confidence
from kerncast.torch.describing import flex_asked
from kerncast.torch.triton_choosing import prune, prune_flex, settle, widened
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

RECIPE = Recipe("gbdt", {"trees": 20, "library_trees": 0, "leaves": 15}, folds=2)
ARGUMENTS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "EVEN_K": True}
M, N, K = 512, 256, 1024
SURE = Confidence(error=0.0, problems=100)


def asking(model, top_k=1, confidence=None):
    """A chooser; how sure it is may be given."""
    chooser = Chooser(model, ChoicePolicy(top_k))
    if confidence is not None:
        chooser.confidence = confidence
    return chooser


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    return train(synthetic_dataset(folder / "data", synthetic_rows(problems=25)), folder / "model", RECIPE, no_folds=True)


def choice(uid, **arguments):
    """A `KernelTemplateChoice`, as far as it is looked at."""
    params = SimpleNamespace(to_kwargs=lambda: dict(arguments), to_serializeable_dict=lambda: dict(arguments))
    return SimpleNamespace(template=SimpleNamespace(uid=uid), params=params, extra_kwargs={"ALLOW_TF32": False})


def node(*size, by_columns=False, dtype="float16"):
    stride = [1, size[0]] if by_columns else [size[1], 1]
    return SimpleNamespace(get_size=lambda: list(size), get_stride=lambda: stride, get_dtype=lambda: f"torch.{dtype}")


def inputs(m=M, n=N, k=K, **told):
    nodes = [node(m, k, **told), node(k, n, by_columns=True, **told)]
    return SimpleNamespace(nodes=lambda: nodes, output_layout=lambda flexible=True: node(m, n, **told), _scalars={})


ATEN = choice("aten::mm")
STOCK = [
    ATEN,
    *(choice("triton::mm", **{**ARGUMENTS, "BLOCK_M": m, "BLOCK_N": n}) for m in (32, 64, 128) for n in (32, 64, 128)),
]


def test_templates_are_configs():
    """Inductor's usual arguments are left out, so that a config has one key; a template without a tile is the library's."""
    tile = {
        "kind": "triton",
        **{name: ARGUMENTS[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")},
    }
    assert config_of("triton::mm", ARGUMENTS) == config_of("triton::bmm", ARGUMENTS) == tile
    assert config_of("triton::mm_persistent_tma", {**ARGUMENTS, "GROUP_M": 4, "NUM_SMS": 108}) == {
        **tile, "template": "persistent_tma", "GROUP_M": 4,
    }  # fmt: skip
    assert config_of("decompose_k", {"k_split": 8}) == {"kind": "library", "template": "decompose_k", "k_split": 8}
    assert config_of("aten::bias_addmm", {}) == {"kind": "library"}
    amd = {**ARGUMENTS, "matrix_instr_nonkdim": 0, "waves_per_eu": 2, "kpack": 2}
    assert config_of("triton::mm", amd) == {**tile, "matrix_instr_nonkdim": 0, "waves_per_eu": 2, "kpack": 2}
    for uid in ("triton::mm", "triton::mm_persistent_tma", "decompose_k", "contiguous_mm", "aten::mm"):
        known = config_of(uid, {**amd, "k_split": 2})
        assert dict(Config(triton, known)).items() >= known.items()
    for uid, arguments in (("triton::mm", {**ARGUMENTS, "BLOCK_M": 48}), ("triton::mm", {}), ("triton::grouped_mm", ARGUMENTS),
                           ("aten::_scaled_mm", {}), ("decompose_k", {"k_split": True})):  # fmt: skip
        assert config_of(uid, arguments) is None


def test_the_best_are_kept_with_the_library_unless_the_model_is_sure(model):
    """Subsets of the given objects, in their order; nothing is changed; what fails a rule is not ranked."""
    given = list(STOCK)
    kept, decision = prune(asking(model), given, inputs(), "mm")
    assert given == STOCK
    assert (len(kept), kept[0] is ATEN, decision.kept, decision.status) == (2, True, 2, "timed")
    assert decision.candidates == 10
    several, decision = prune(asking(model, top_k=3, confidence=SURE), STOCK, inputs(), "mm")
    assert [item for item in STOCK if item in several] == several
    assert (len(several), decision.reason, decision.problem["layout"]) == (3, "top_k=3", "rcr")
    assert decision.predicted_ns > 0
    large = choice("triton::mm", **{**ARGUMENTS, "BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 5})
    assert prune(asking(model, top_k=99), [*STOCK, large], inputs(), "mm")[1].candidates == 10


def test_what_the_model_never_measured_is_left_to_inductor(model):
    """Another template, an unknown op and an unknown GROUP_M are kept to be timed; widened ones are not."""
    tma = choice("triton::mm_persistent_tma", **ARGUMENTS)
    wide = choice("triton::mm", **{**ARGUMENTS, "GROUP_M": 16})
    other = choice("triton::something_new", **ARGUMENTS)
    kept, decision = prune(asking(model, confidence=SURE), [*STOCK, tma, wide, other], inputs(), "mm")
    assert kept[-3:] == [tma, wide, other]
    assert (len(kept), decision.status, decision.reason) == (4, "timed", "3 that the model cannot rank")
    kept, _ = prune(asking(model, top_k=2, confidence=SURE), STOCK, inputs(), "mm", more=[tma, wide, *STOCK[1:]])
    assert all(item in STOCK for item in kept)


@pytest.mark.parametrize(
    ("asked", "op", "reason"),
    [
        (inputs(m=7), "mm", "M=7 is out of range"),
        (inputs(m="s0"), "mm", "not known numbers"),
        (inputs(dtype="float32"), "mm", "dtype=fp32 is out of range"),
        (inputs(), "grouped_mm", "is not a product that gemm has"),
        (SimpleNamespace(), "mm", "AttributeError"),
        (None, "\x1b[31m", "AttributeError"),
    ],
)
def test_without_an_answer_everything_is_kept(model, asked, op, reason):
    """Out of range, dynamic, another op, objects that are not Inductor's: the stock list, and the reason."""
    kept, decision = prune(asking(model), STOCK, asked, op, more=[choice("triton::mm", **{**ARGUMENTS, "num_warps": 8})])
    assert kept == STOCK
    assert kept is not STOCK
    assert (decision.status, decision.kept) == ("abstained", len(STOCK))
    assert reason in decision.reason


def test_an_exploding_model_keeps_everything(model, monkeypatch):
    """Whatever happens inside, the compilation goes on with what Inductor offered; ATen alone is nothing to choose from."""
    monkeypatch.setattr(type(model), "predict_rows", lambda self, rows: 1 / 0)
    kept, decision = prune(asking(model), STOCK, inputs(), "mm")
    assert (kept, decision.reason) == (STOCK, "ZeroDivisionError: division by zero")
    assert prune(asking(model), [ATEN], inputs(), "mm")[1].reason == "no template is offered"
    assert prune(asking(model), [], inputs(), "mm")[0] == []


def handler(ask, wide=False):
    """Inductor's own handler with the pruning in it; decisions are kept in `decisions`."""
    from torch._inductor.choices import InductorChoices

    class Pruning(InductorChoices):
        def __init__(self):
            super().__init__()
            self.decisions, self.settled = [], []

        def _finalize_template_configs(self, template_choices, kernel_inputs, templates, op_name, kwarg_overrides=None):
            stock = super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, kwarg_overrides)
            more = widened(self, kernel_inputs, templates, op_name, kwarg_overrides) if wide else ()
            kept, decision = prune(ask, stock, kernel_inputs, op_name, more)
            self.decisions.append((len(stock), len(more), decision))
            return kept

    return Pruning()


@pytest.mark.needs("triton")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_renders_only_what_is_left(model):
    """mm: one of hundreds of widened templates; addmm: ATen's kernel, asked for apart, is joined when all are rendered."""
    from torch._inductor import select_algorithm

    import torch

    a, b = torch.randn(M, K, dtype=torch.float16), torch.randn(N, K, dtype=torch.float16).t()
    bias = torch.randn(N, dtype=torch.float16)
    chosen = handler(asking(model, confidence=SURE), wide=True)
    with triton_on_cpu(chosen) as left:
        assert torch.equal(torch.compile(torch.mm)(a, b), torch.mm(a, b))
    ((stock, more, decision),) = chosen.decisions
    assert (stock, len(left[0]), decision.kept, decision.status) == (21, 1, 1, "chosen")
    assert more > 300
    assert decision.candidates > 300
    timed, settled = handler(asking(model)), []
    with triton_on_cpu(timed) as left:
        before = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
        before.insert(0, lambda choices: settled.append(settle(asking(model), choices, "addmm")) or choices)
        assert torch.equal(torch.compile(torch.addmm)(bias, a, b), torch.addmm(bias, a, b))
    assert [names[0] for names in left] == ["addmm"]
    assert len(left[0]) == 2
    ((both, decision),) = settled
    assert (len(both), decision.candidates) == (2, 2)
    odd = handler(asking(model))
    with triton_on_cpu(odd) as left:
        torch.compile(torch.mm)(a[:, :1000], b[:1000])
    assert len(left[0]) == odd.decisions[0][0] > 2
    assert "out of range" in odd.decisions[0][2].reason


# -- flex attention ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flex_model(tmp_path_factory):
    import numpy as np
    import polars as pl

    from kerncast.data import schema
    from kerncast.library.families.gemm_triton import flex_attention_triton

    folder = tmp_path_factory.mktemp("flex")
    shapes = [(b, h, s, d) for b in (1, 2, 4) for h in (4, 8) for s in (256, 512, 1024, 2048) for d in (32, 64)]
    tiles = [(m, n, s, 4) for m in (32, 64, 128) for n in (32, 64, 128) for s in (1, 3)]
    rows = [(*shape, *tile) for shape in shapes for tile in tiles]
    frame = pl.DataFrame(
        [(b, h, s, s, d, "fp16", "bhmd", 6, 1, *tile) for b, h, s, d, *tile in rows],
        schema=[f"problem.{x}" for x in flex_attention_triton.problem.parameters]
        + [f"config.{x}" for x in flex_attention_triton.config.parameters],
        orient="row",
    )
    block = frame["config.BLOCK_M"].to_numpy() * frame["config.BLOCK_N"].to_numpy()
    work = frame["problem.q_len"].to_numpy() ** 2.0 * frame["problem.head_dim"].to_numpy()
    frame = frame.with_columns(device=pl.lit("a100"), status=pl.lit("ok"), time_ns=pl.Series(work / np.sqrt(block)))
    stored = schema.conform(flex_attention_triton, frame)
    return train(synthetic_dataset(folder / "data", stored, flex_attention_triton), folder / "model", RECIPE, no_folds=True)


def test_flex_attention_configs_are_ranked_too(flex_model):
    """The best that divide the mask's blocks are kept; an unreadable problem keeps all of them."""
    configs = [SimpleNamespace(block_m=m, block_n=n, num_stages=3, num_warps=4) for m in (32, 64, 128) for n in (32, 128)]
    problem = {"batch": 2, "heads": 4, "q_len": 512, "kv_len": 512, "head_dim": 64, "dtype": "fp16", "q_layout": "bhmd",
               "mod_nodes": 6, "mod_args": 1}  # fmt: skip
    kept, decision = prune_flex(asking(flex_model), configs, problem, (128, 128))
    assert [(item.block_m, item.block_n) for item in kept] == [(128, 128)]
    assert (decision.op, decision.status, decision.candidates) == ("flex_attention", "chosen", 6)
    kept, decision = prune_flex(asking(flex_model, top_k=2), configs, problem, (64, 32), more=configs)
    assert [(item.block_m, item.block_n) for item in kept] == [(64, 32), (32, 32)]
    for blocks, asked in (((48, 16), problem), ((128, 128), "dynamic"), ((128, 128), {**problem, "q_len": 9})):
        assert prune_flex(asking(flex_model), configs, asked, blocks)[0] == configs


@pytest.mark.needs("triton")
def test_flex_attention_is_read_from_the_graph():
    """Sizes, storage order, blocks and the size of the score function, as the operator that Inductor lowers has them."""
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention.flex_attention import flex_attention

    import torch

    found = []

    def capture(module, _):
        (own,) = (item for item in module.graph.nodes if "flex_attention" in str(item.target) and item.op == "call_function")
        found.append(flex_asked(own))
        raise InterruptedError

    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 256, 32) for _ in range(3))
    compiled = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod=lambda score, b, h, m, n: score + (m - n)),
        backend=aot_autograd(fw_compiler=capture, inference_compiler=capture), fullgraph=True,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"InterruptedError|capture"), torch.no_grad():
        compiled(q, k, v)
    problem, blocks = found[0]
    assert {name: problem[name] for name in ("batch", "heads", "q_len", "kv_len", "head_dim", "dtype", "q_layout")} == {
        "batch": 2, "heads": 4, "q_len": 256, "kv_len": 256, "head_dim": 32, "dtype": "fp32", "q_layout": "bhmd",
    }  # fmt: skip
    assert problem["mod_args"] == 3
    assert problem["mod_nodes"] > 5
    assert all(size > 0 for size in blocks)
    assert flex_asked(SimpleNamespace(args=()))[0].startswith("the operator cannot be read")


@pytest.mark.needs("triton")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_enabled_model_prunes_before_anything_is_rendered(model, monkeypatch):
    """Through the hooks that every handler has: enabled it chooses, on another GPU it abstains, then it is stock again."""
    import kerncast.torch as ki
    import torch
    from kerncast.torch import hooks, reporting

    hooks.install()
    a, b = torch.randn(M, K, dtype=torch.float16), torch.randn(N, K, dtype=torch.float16).t()

    def compiled():
        reporting.forget()
        with triton_on_cpu() as left:
            assert torch.equal(torch.compile(torch.mm)(a, b), torch.mm(a, b))
        return [len(names) for names in left], reporting.made()

    monkeypatch.setattr(hooks, "local_gpu", lambda: ("a100", {}))
    with ki.enable(model, top_k=2):
        left, (found,) = compiled()
    assert found.candidates > 300
    assert (left, found.kept, found.op, found.status) == ([3], 3, "mm", "timed")  # the library stays: it is not sure
    monkeypatch.setattr(hooks, "local_gpu", lambda: ("h100", {}))
    with ki.enable(model):
        left, (found,) = compiled()
    assert (left, found.reason) == ([21], "the model is for a100, and this is h100")
    assert compiled() == ([21], [])
