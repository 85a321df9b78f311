"""Files for PyTorch's Inductor, taken by Inductor itself: the lookup table and the heuristic of AutoHeuristic."""

import ast
import contextlib
import json
import re
import sys
import warnings
from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from tests.support.hostile import TEXTS

import kerncast as kc
from kerncast.answering.exporters.autoheuristic import Heuristic, context_columns, distill_heuristic, python_source
from kerncast.answering.exporters.lookup_table import key_of, lookup_table
from kerncast.answering.selector import Selector
from kerncast.core.io.quoting import python_comment, python_literal
from kerncast.core.io.terminal import known
from kerncast.core.op import Problem
from kerncast.data.choices import ChoiceTarget, Solution
from kerncast.data.formats.inductor.choices import read_lookup_table
from kerncast.errors import InvalidValue
from kerncast.learning.learners.trees import Tree
from kerncast.library.families.gemm_triton import triton
from kerncast.native.tiers.build import TierOptions, plain_tiers
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

TILE = {"kind": "triton", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4}
OTHER = {"kind": "triton", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_stages": 2, "num_warps": 8}
LIBRARY = {"kind": "library"}
GPU = "NVIDIA A100-SXM4-80GB"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inductor")
    rows = synthetic_rows(problems=30)
    # A bias, two dtypes and two layouts, so that every kind of key has training problems.
    more = rows.filter(pl.col("problem.M") < 1000).with_columns(
        **{"problem.dtype": pl.lit("fp32"), "problem.layout": pl.lit("rrr"), "problem.bias": pl.lit(True)}
    )
    synthetic_dataset(folder / "data", pl.concat([rows, more]))
    return train(folder / "data", folder / "model", Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7}, folds=2))


def problem(m, n, k, layout="rcr", dtype="fp32", **more):
    return Problem(triton, M=m, N=n, K=k, layout=layout, dtype=dtype, **more)


def table_of(*chosen, more=(), **options):
    """The entries for (problem, config, …) given in order of preference."""
    ranked = [(first, configs) for first, *configs in chosen]
    return lookup_table(triton, ranked, lambda _: list(more), **options).entries


# -- with torch ------------------------------------------------------------------------------------------


class Driver:
    """As much of a Triton driver as is asked before a kernel is compiled."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    @property
    def utils(self):
        class Utils:
            @staticmethod
            def get_device_properties(_):
                return {"max_shared_mem": 166912}

        return Utils


@contextlib.contextmanager
def inductor(entries, **settings):
    """Triton's path of Inductor on a machine without a GPU, up to the choice; yields what it would have timed.

    ATen runs in the end, so that the graph can be checked.
    """
    from torch._inductor import config, select_algorithm
    from torch._inductor.kernel.bmm import aten_bmm
    from torch._inductor.kernel.mm import aten_mm
    from torch._inductor.lookup_table.choices import LookupTableChoices
    from torch._inductor.virtualized import V
    from triton.runtime import driver

    import torch

    class Choices(LookupTableChoices):
        def uuid(self):
            return "kerncast-test"

        def _get_lookup_table(self):  # the stock one is empty without CUDA
            return entries

        @staticmethod
        def _get_device_key(device):
            return GPU

    offered = []

    def note(choices):
        offered[:] = [(item.annotations["ktc"].template.uid, item.annotations["ktc"].params.to_kwargs()) for item in choices]
        first = choices[0]
        aten = [item for item in choices if hasattr(item, "choice")]
        own = {2: aten_mm, 3: aten_bmm}[len(first.input_nodes[-1].get_size())]
        return aten[:1] or [own.bind(first.input_nodes, first.layout)]

    before = driver._active
    driver.set_active(Driver())
    select_algorithm.add_preprocessing_fn(note)
    patched = config.patch(
        cpu_backend="triton", max_autotune=True, max_autotune_gemm_backends="ATEN,TRITON", fx_graph_cache=False,
        inductor_choices_class=Choices, **settings,
    )  # fmt: skip
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings(), patched, V.set_choices_handler(Choices()), torch.no_grad():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield offered
    finally:
        select_algorithm.get_algorithm_selector_cache().preprocessing_fns.remove(note)
        driver._active = before  # its own reset looks for a GPU
        torch._dynamo.reset()


def operands(asked):
    """Tensors of a problem, with its strides."""
    import torch

    def matrix(rows, columns, stored, ld):
        first, second = (rows, columns) if stored == "r" else (columns, rows)
        batch = [asked["batch"]] if asked["batch"] > 1 else []
        made = torch.randn(*batch, first, ld or second)[..., :second]
        return made if stored == "r" else made.transpose(-1, -2)

    a = matrix(asked["M"], asked["K"], asked["layout"][0], asked.get("lda"))
    b = matrix(asked["K"], asked["N"], asked["layout"][1], asked.get("ldb"))
    return (torch.randn(asked["N"]), a, b) if asked.get("bias") else (a, b)


CASES = {
    "mm": problem(64, 96, 144),
    "odd sizes, by columns": problem(33, 51, 77, "ccr"),
    "a gap between rows": problem(64, 96, 144, "rrr", lda=160, ldb=101),
    "bmm": problem(48, 32, 64, "rrr", batch=3),
    "addmm": problem(64, 96, 144, bias=True),
}


@pytest.mark.needs("triton")
@pytest.mark.parametrize("case", CASES)
def test_inductor_finds_the_exported_config_and_nothing_else(case):
    """By its own key for the operands; a table of one config leaves one template, with the arguments that were written."""
    import torch

    asked = CASES[case]
    op = {"bmm": torch.bmm, "addmm": torch.addmm}.get(case, torch.mm)
    entries = table_of((asked, TILE), device_name=GPU if case == "mm" else None)
    given = operands(asked)
    with inductor(entries) as offered:
        got = torch.compile(op, dynamic=False)(*given)
    torch.testing.assert_close(got, op(*given))
    tiles = [kwargs for uid, kwargs in offered if uid.startswith("triton")]
    # Inductor asks for ATen apart if there is a bias.
    assert [uid for uid, _ in offered] == (["aten::addmm", "triton::mm"] if case == "addmm" else [f"triton::{op.__name__}"])
    assert tiles[0] | {"hint_override": None} == {
        "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "hint_override": None,
        "EVEN_K": asked["K"] % 32 == 0, "ACC_TYPE": "tl.float32", "USE_FAST_ACCUM": False,
    }  # fmt: skip


@pytest.mark.needs("triton")
def test_a_table_lists_several_configs_and_the_library_and_misses_other_shapes():
    """The library where it is chosen; with a bias the best template stays beside it; stock's configs for another shape."""
    import torch

    mm, biased = problem(64, 96, 144), problem(32, 96, 144, bias=True)
    entries = table_of((mm, LIBRARY, TILE, OTHER), (biased, LIBRARY), more=[LIBRARY, OTHER, TILE])
    with inductor(entries) as offered:
        torch.compile(torch.mm, dynamic=False)(*operands(mm))
        assert [(uid, kwargs.get("BLOCK_K")) for uid, kwargs in offered] == [
            ("aten::mm", None), ("triton::mm", 32), ("triton::mm", 16),
        ]  # fmt: skip
        torch.compile(torch.addmm, dynamic=False)(*operands(biased))
        assert [(uid, kwargs.get("BLOCK_K")) for uid, kwargs in offered] == [("aten::addmm", None), ("triton::mm", 16)]
        torch.compile(torch.mm, dynamic=False)(*operands(problem(64, 96, 160)))
        assert len(offered) > 5


@pytest.mark.needs("triton")
def test_autoheuristic_loads_the_module_and_asks_it(model, tmp_path, monkeypatch):
    """Through the controller: its choices for a context are those of the tree; another GPU, dtype or range is left alone."""
    from torch._inductor.autoheuristic import artifacts
    from torch._inductor.autoheuristic.autoheuristic_utils import AHContext, AHMetadata, mm_operations
    from torch._inductor.autoheuristic.learned_heuristic_controller import LearnedHeuristicController

    import torch

    kc.export(model, to="autoheuristic", out=tmp_path / "_KerncastMM.py", progress=False)
    monkeypatch.setattr(artifacts, "__path__", [str(tmp_path), *artifacts.__path__])
    monkeypatch.setattr(LearnedHeuristicController, "heuristics_initialized", False)
    monkeypatch.setattr(LearnedHeuristicController, "existing_heuristics", defaultdict(list))
    monkeypatch.delitem(sys.modules, f"{artifacts.__name__}._KerncastMM", raising=False)
    heuristic = distill_heuristic(model, TierOptions())

    def ask(m, k, n, dtype=torch.float16, memory=166912, top_k=3):
        context = AHContext()
        strides = {"mat1_stride_0": k, "mat1_stride_1": 1, "mat2_stride_0": 1, "mat2_stride_1": k}
        flags = {"mat1_dtype": dtype, "mat2_dtype": dtype, "using_tf32": "not_float_32"}
        for name, value in {"m": m, "k": k, "n": n, **strides, **flags}.items():
            context.add_feature(name, value)
        context.apply_operations(mm_operations())
        controller = LearnedHeuristicController(AHMetadata(memory, (8, 0), list(heuristic.choices), "mm"), context)
        first, *stock = controller.get_heuristics("mm")
        assert (type(first).__name__, bool(stock)) == ("KerncastMM", True)
        if not first.check_precondition(controller.metadata, context):
            return None
        return controller.get_decisions_ranked(top_k), controller.get_decision()

    frame = pl.DataFrame({"problem.M": [256, 4096, 1024], "problem.K": [512, 256, 8192], "problem.N": [384, 8192, 256]})
    frame = frame.with_columns(
        pl.lit("fp16").alias("problem.dtype"), pl.lit("rcr").alias("problem.layout"), pl.lit(False).alias("problem.tf32"),
        *(pl.lit(None, pl.Int64).alias(f"problem.{name}") for name in ("lda", "ldb")),
    )  # fmt: skip
    columns = context_columns(frame)
    leaves = heuristic.tree.leaf_of(np.column_stack([columns.get(name, np.zeros(3)) for name in heuristic.features]))
    for row, leaf in zip(frame.iter_rows(named=True), leaves, strict=True):
        wanted = [heuristic.choices[place] for _, place in heuristic.lists[leaf]]
        ranked, first = ask(row["problem.M"], row["problem.K"], row["problem.N"])
        assert (ranked, first) == (wanted[:3], wanted[0])
    for other in ({"dtype": torch.float64}, {"memory": 1}, {"m": 10**7}):
        assert ask(**{"m": 256, "k": 512, "n": 384, **other}) is None


# -- without torch ---------------------------------------------------------------------------------------


def test_the_commands_write_both_files(model, run, tmp_path):
    """From the command line: what our own reader finds in the table is what the model ranks first; the tree has a figure."""
    table = tmp_path / "table.json"
    code, out, _ = run("export", model.path, "--to", "lookup-table", "--out", table, "--device-name", GPU, "--top-k", 2)
    assert code == 0
    assert "table.json" in out
    read = list(read_lookup_table(json.loads(table.read_text()), ChoiceTarget(triton, ("a100",))))
    assert all(isinstance(item, Solution) for item in read)
    selector, seen = Selector(model, tiers=plain_tiers(model), compile=False), set()
    for item in read:
        named = {name: value for name, value in item.problem.items() if value is not None}
        asked = selector.problem({**named, "tf32": False})
        ranked = [known(answer.config) for answer in selector.rank(asked, 2)]
        if asked not in seen:  # a bias has a second key, with the best tile
            assert known(item.config) == ranked[0]
        seen.add(asked)
    assert len(seen) == model.out_of_fold.select(pl.col("^problem.*$")).unique().height
    assert {bool(item["bias"]) for item in seen} == {True, False}
    code, _, said = run("export", model.path, "--to", "autoheuristic", "--out", tmp_path / "_KerncastMM.py", "--top-k", 4)
    assert code == 0
    assert re.search(r"reaches \d+\.\d% of the best measured time on \d+ .*, the model itself \d+\.\d%", said)
    ast.parse((tmp_path / "_KerncastMM.py").read_text())


def test_what_a_key_cannot_say_is_left_out_and_counted():
    """Fused activations, other types and strides of C; TF32 never takes the place of full precision."""
    fused = problem(64, 64, 64, activation="relu")
    plain, rounded = problem(64, 64, 64), problem(64, 64, 64, tf32=True)
    made = lookup_table(triton, [(fused, [TILE]), (rounded, [OTHER]), (plain, [TILE]), (problem(1, 2, 3), [])], lambda _: [])
    assert [entry["BLOCK_K"] for (entry,) in made.entries.values()] == [32]
    assert (made.problems, sum(made.left_out.values())) == (1, 3)
    assert any("which activation is fused" in note for note in made.notes())
    with pytest.raises(InvalidValue, match="no problem has an entry in a lookup table: 1 problems are left out: Inductor's mm"):
        lookup_table(triton, [(problem(8, 8, 8, dtype="int8"), [TILE])], lambda _: [])


def test_values_that_a_family_declares_go_before_the_usual_ones():
    """GROUP_M and the template by name; EVEN_K always follows from K; a template that torch lacks has no entry."""
    config = {**TILE, "GROUP_M": 4, "template": "persistent_tma", "EVEN_K": True}
    (made,) = table_of((problem(64, 64, 40), config)).values()
    assert (made[0]["template_id"], made[0]["GROUP_M"], made[0]["EVEN_K"]) == ("triton::mm_persistent_tma", 4, False)
    with pytest.raises(InvalidValue, match="the chosen template has no entry"):
        table_of((problem(64, 64, 40), {**TILE, "template": "decompose_k"}))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"to": "autoheuristic", "out": "mm.py"}, "names begin with '_' and end in .py, got 'mm.py'"),
        ({"to": "autoheuristic", "out": "_mm.py", "problems": []}, "`problems` is only for `to=json` and `to=lookup-table`"),
        ({"to": "c", "out": "c", "top_k": 3}, "`top_k` is only for `to=autoheuristic` and `to=lookup-table`"),
        ({"to": "lookup-table", "out": "t", "top_k": 0}, "`top_k` must be at least 1, got 0"),
        ({"to": "lookup-table", "out": "t", "device_name": "A\n100"}, "gcnArchName says, in one line, got 'A"),
        ({"to": "lookup-table", "out": "t", "problems": []}, "no problem has an entry .* there is no problem"),
    ],
)
def test_options_that_do_not_fit_are_refused(model, tmp_path, options, rule):
    """With the form that they are for."""
    with pytest.raises(InvalidValue, match=rule):
        kc.export(model, out=tmp_path / options.pop("out"), progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_generated_python_holds_any_text_as_text():
    """Names that end a string or a line stay literals and comments; numbers that Python lacks are refused."""
    for text in TEXTS:
        assert ast.literal_eval(python_literal(text)) == text
        assert python_literal(text).isascii()
        assert ast.parse(f"{python_comment(text)}\nx = 1").body[0].lineno == 2
    with pytest.raises(InvalidValue, match="must be finite, got inf"):
        python_literal(float("inf"))


def test_a_deep_tree_is_divided_into_functions(model):
    """Python allows a hundred levels of indentation: a chain of two hundred splits still answers."""
    depth = 200
    chain = Tree(
        np.zeros(depth, np.int64), np.arange(depth, dtype=float), -1 - np.arange(depth),
        np.r_[np.arange(1, depth), -1 - depth], np.zeros(depth + 1),
    )  # fmt: skip
    lists = tuple(((0.5, place),) for place in range(depth + 1))
    made = Heuristic(chain, lists, ("extern_mm",) * (depth + 1), ("m",), ("True",), 1, False, 1.0, None)
    source = python_source(model, made)
    space = {"LearnedHeuristicDecision": object, "AHContext": object, "AHMetadata": object, "Choice": object}
    exec(re.sub(r"^from torch.*$", "", source, flags=re.MULTILINE), space)  # the module that was just made

    class Context:
        def __init__(self, m):
            self.m = m

        def get_value(self, name):
            return {"m": self.m}[name]

    answers = [space["KerncastMM"]().get_best_choices(Context(m))[0][1] for m in (-1, 0, 0.5, 57, 198.5, 500)]
    assert answers == [0, 0, 1, 57, 199, 200]


def test_keys_have_the_strides_of_the_layout():
    """By rows, by columns, with gaps, batched; a bias spread over C and as it is."""
    assert key_of(problem(2, 3, 5, "crr", batch=4, lda=7)) == (
        "((torch.float32, [4, 2, 5], [35, 1, 7]), (torch.float32, [4, 5, 3], [15, 3, 1]))+bmm"
    )
    ending = "(torch.float32, [2, 5], [5, 1]), (torch.float32, [5, 3], [1, 5]))+alpha=1&beta=1+addmm"
    assert key_of(problem(2, 3, 5, bias=True)) == f"((torch.float32, [2, 3], [0, 1]), {ending}"
    assert key_of(problem(2, 3, 5, bias=True), spread=False) == f"((torch.float32, [3], [1]), {ending}"
