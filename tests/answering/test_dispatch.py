"""Dispatching: real kernels on a caller's arrays, compiled here, so everything needs a C compiler."""

import itertools
import json
import math
import multiprocessing
import threading

import numpy as np
import polars as pl
import pytest
from tests.support.artefacts import reseal

from kerncast.answering.dispatch import Dispatcher
from kerncast.core.op import Config
from kerncast.data import schema
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.families.gemm_cpu import gemm_cpu
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.backends.cpu.gemm.arrays import MatrixProduct
from kerncast.models.answer import Answer, Answered, Tier
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

pytestmark = pytest.mark.needs("a C compiler")

BASE = {
    "kernel": "outer", "vector_bytes": 16, "mr": 4, "nv": 2, "k_unroll": 1, "prefetch": 0, "pack_a": True, "pack_b": True,
    "mc": 24, "kc": 64, "nc": 64, "loop_order": "nkm", "tile_order": "nm", "split": "none",
}  # fmt: skip
DIRECT = {**BASE, "pack_a": False, "pack_b": False, "mr": 3, "nv": 1}
DOT = {**BASE, "kernel": "dot", "pack_a": None, "pack_b": None}
SPLIT = {**BASE, "split": "k"}
TYPES = {"float32": 1e-6, "float64": 1e-14, "int8": 0.0}


def config(values):
    return Config(gemm_cpu, {name: value for name, value in values.items() if value is not None})


class FewTrials(CpuBackend):
    """The real backend, which knows only a few configs to try."""

    asked = 0

    def first_configs(self, problem):
        self.asked += 1
        return iter([config(BASE), config(DIRECT), config(DOT)])


class Fixed:
    """A chooser with one answer for everything, which counts its questions."""

    def __init__(self, **answer):
        self.answer, self.asked = answer, 0

    def select(self, problem):
        self.asked += 1
        return Answer(problem=problem, **self.answer)


def always(values):
    return Fixed(status=Answered.OK, config=config(values), time_ns=1e3, tier=Tier.TREE)


@pytest.fixture(scope="module")
def backend():
    return FewTrials()


def numbers(shape, dtype, seed=0):
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return (drawn * 60).clip(-128, 127).astype(dtype) if dtype == "int8" else drawn.astype(dtype)


def stored(rows, columns, dtype):
    """One matrix in every way in which numpy may store it: by rows, by columns, parts of larger ones, and odd ones."""
    plain = numbers((rows, columns), dtype)
    large = numbers((rows + 3, columns + 5), dtype, 1)
    unaligned = np.empty(plain.nbytes + 1, np.uint8)[1:].view(dtype).reshape(rows, columns)
    unaligned[...] = plain
    return {
        "by rows": plain,
        "by columns": np.asfortranarray(plain),
        "part of rows": large[1 : rows + 1, 2 : columns + 2],
        "part of columns": np.asfortranarray(large)[2 : rows + 2, 4 : columns + 4],
        "backwards": plain[::-1],
        "every other": np.repeat(plain, 2, axis=1)[:, ::2],
        "one row for all": np.broadcast_to(plain[:1], (rows, columns)),
        "unaligned": unaligned,
    }


def agree(found, a, b, case=""):
    """As numpy has it in the widest type, within rounding of as many terms."""
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert found.shape == wanted.shape, case
    assert found.dtype == (np.int32 if a.dtype == np.int8 else a.dtype), case
    scale = 1 + np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) if found.size else 1.0
    assert np.all(np.abs(found - wanted) <= TYPES[str(a.dtype)] * scale), case


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("values", [BASE, DIRECT, DOT], ids=["packed", "direct", "dot"])
def test_products_equal_numpys_however_the_operands_are_stored(backend, dtype, values):
    """Rows, columns, slices, reversed, strided, broadcast and unaligned arrays of awkward sizes give numpy's result."""
    dispatcher = Dispatcher(
        "gemm/cpu", Fixed(status=Answered.OK, config=config(values), fallback=config(BASE)), backend=backend
    )
    for m, n, k in ((5, 19, 70), (1, 17, 33), (13, 1, 21), (1, 1, 5), (6, 4, 1)):
        for (one, a), (other, b) in itertools.product(stored(m, k, dtype).items(), stored(k, n, dtype).items()):
            agree(dispatcher.run(a, b), a, b, f"{m}×{n}×{k}: a {one}, b {other}")


def test_operands_are_used_where_they_lie():
    """Parts of matrices by rows or columns need no copy and say so in the layout; only odd strides are copied."""
    found = {}
    for name, array in stored(6, 9, "float32").items():
        product = MatrixProduct.of(array, np.ones((9, 4), np.float32))
        found[name] = product.values["layout"], product.a.copied, product.a.stride
    assert found["by rows"] == ("rrr", False, 9)
    assert found["part of rows"] == ("rrr", False, 14)
    assert found["by columns"] == ("crr", False, 6)
    assert found["part of columns"] == ("crr", False, 9)
    assert {name for name, (_, copied, _) in found.items() if copied} == {
        "backwards",
        "every other",
        "one row for all",
        "unaligned",
    }
    layouts = {
        MatrixProduct.of(a, b).values["layout"]
        for a in stored(6, 9, "float32").values()
        for b in stored(9, 4, "float32").values()
    }
    assert layouts == {"rrr", "rcr", "crr", "ccr"}


def test_batches_broadcast_as_in_numpy(backend):
    """Three axes are as many products, one matrix serves all; rows of a batch that share B become one product."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    many_a, many_b = numbers((3, 5, 8), "float32"), numbers((3, 8, 7), "float32", 1)
    for a, b in (
        (many_a, many_b),
        (many_a, many_b[0]),
        (many_a[::2], many_b[:2]),
        (many_a[:, 1:4], many_b[0]),
        (many_a[0], many_b),
        (many_a[:1], many_b),
        (many_a, many_b[:1]),
        (many_a[::-1], many_b),
        (many_a.transpose(0, 2, 1).copy().transpose(0, 2, 1), many_b),
        (many_a[:, :1], many_b[0]),
    ):
        agree(dispatcher.run(a, b), a, b, f"{a.shape} {a.strides} · {b.shape}")
    assert MatrixProduct.of(many_a, many_b[0]).values["M"] == 15
    assert MatrixProduct.of(many_a, many_b).values["batch"] == 3


def test_empty_products_are_numpys(backend):
    """No rows, no columns, no products: nothing; no terms: zeros, in `out` too. No kernel is asked for."""
    chooser = always(BASE)
    dispatcher = Dispatcher("gemm/cpu", chooser, backend=backend)
    for shape_a, shape_b in (((0, 4), (4, 3)), ((2, 4), (4, 0)), ((2, 0), (0, 3)), ((0, 2, 4), (0, 4, 3)), ((2, 3, 0), (0, 5))):
        a, b = np.ones(shape_a, np.float32), np.ones(shape_b, np.float32)
        agree(dispatcher.run(a, b), a, b)
        assert dispatcher.choice(a, b) is None
    out = np.full((2, 3), np.nan, np.float32)
    assert dispatcher.run(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32), out=out) is out
    assert (out == 0).all()
    assert chooser.asked == 0


def test_out_is_written_in_place_or_aside(backend):
    """`out` by rows is written directly; by columns, with gaps, or overlapping an operand, it still ends up right."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    a, b = numbers((6, 6), "float32"), numbers((6, 6), "float32", 1)
    wanted = dispatcher.run(a, b)
    gaps = np.zeros((6, 12), np.float32)
    for out in (np.empty((6, 6), np.float32), np.empty((6, 6), np.float32, order="F"), gaps[:, ::2]):
        assert dispatcher.run(a, b, out=out) is out
        assert (out == wanted).all()
    assert (gaps[:, 1::2] == 0).all(), "nothing between"
    shared = np.zeros(50, np.float32)
    moved = shared[:36].reshape(6, 6)
    moved[...] = a
    assert (dispatcher.run(moved, b, out=shared[7:43].reshape(6, 6)) == wanted).all()
    unaligned = np.empty(6 * 6 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(6, 6)
    unaligned[...] = a
    assert (dispatcher.run(unaligned, b, out=unaligned) == wanted).all()
    assert (dispatcher.run(a, b, out=b) == wanted).all()


def test_out_may_have_gaps_between_its_rows(backend):
    """A slice of a larger array is written in place, alone or in a batch, and nothing beside it is touched."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    for shape, other in (((7, 12), (12, 9)), ((3, 7, 12), (12, 9)), ((3, 7, 12), (3, 12, 9)), ((7, 12), (12, 1))):
        a, b = numbers(shape, "float32"), numbers(other, "float32", 1)
        whole = np.full((*shape[:-1], other[-1] + 4), 7.0, np.float32)
        out = whole[..., 1:-3]
        assert dispatcher.run(a, b, out=out) is out
        agree(out, a, b)
        assert (whole[..., :1] == 7.0).all()
        assert (whole[..., -3:] == 7.0).all()
    assert dispatcher.problem(np.ones((9, 24), np.float32)[:, :12], np.ones((12, 8), np.float32))["lda"] == 24


def test_a_bias_and_an_activation_follow_the_product(backend):
    """run(a, b, bias, activation=…) is the activation of a @ b + bias, for vectors, batches and slices too."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    smooth = {
        "none": lambda x: x,
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "gelu": lambda x: 0.5 * x * np.array([math.erfc(-y / math.sqrt(2)) for y in x.ravel()]).reshape(x.shape),
    }
    cases = itertools.product(smooth, ("float32", "float64"), (((7, 12), (12, 9)), ((3, 5, 4), (4, 9)), ((6, 8), (8, 1))))
    for activation, dtype, (shape, other) in cases:
        a, b, bias = numbers(shape, dtype), numbers(other, dtype, 1), numbers(2 * other[-1], dtype, 2)[::2]
        wanted = smooth[activation](a.astype(np.float64) @ b + bias)
        found = dispatcher.run(a, b, bias, activation=activation)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 if dtype == "float32" else 1e-13)
        np.testing.assert_allclose(dispatcher.run(a, b, activation=activation), smooth[activation](a @ b), rtol=0, atol=3e-6)
    asked = dispatcher.problem(a, b, bias, activation="gelu")
    assert (asked["bias"], asked["activation"]) == (True, "gelu")
    ints = numbers((4, 6), "int8"), numbers((6, 5), "int8", 1), np.arange(5, dtype=np.int32) * 1000
    wanted = np.maximum(ints[0].astype(np.int32) @ ints[1].astype(np.int32) + ints[2], 0)
    assert (dispatcher.run(*ints, activation="relu") == wanted).all()
    for bad, more, why in (
        (np.ones(3, dtype), {}, r"the bias must be float64 of shape \(1,\), one element for each column of b"),
        (np.ones(1, np.float32), {}, "the bias must be float64"),
        (bias, {"activation": "tanh"}, "activation must be one of none, relu, gelu, silu, got 'tanh'"),
        (bias, {"alpha": 2}, "got 3 arrays, alpha"),
    ):
        with pytest.raises(InvalidValue, match=why):
            dispatcher.run(a, b, bad, **more)


def test_strides_that_a_model_has_not_seen_get_the_kernel_of_packed_arrays(backend):
    """The model is asked again without them; its choice runs in place."""

    class Packed:
        def select(self, problem):
            known = problem.usual() is problem
            return Answer(
                Answered.OK if known else Answered.OUT_OF_RANGE, problem, config(BASE) if known else None, tier=Tier.TREE
            )

    dispatcher = Dispatcher("gemm/cpu", Packed(), backend=backend)
    a, b = numbers((9, 20), "float32")[:, :12], numbers((12, 8), "float32", 1)
    agree(dispatcher.run(a, b), a, b)
    assert dispatcher.answered == {"tree": 1}


def test_the_second_call_only_runs(backend):
    """One question per problem, however often and with whatever data it comes; another stride is another problem."""
    chooser = always(BASE)
    dispatcher = Dispatcher("gemm/cpu", chooser, backend=backend)
    for seed in range(4):
        a, b = numbers((9, 11), "float32", seed), numbers((11, 5), "float32", seed + 9)
        agree(dispatcher.run(a, b), a, b)
    wide = numbers((9, 20), "float32")[:, 3:14]
    agree(dispatcher.run(wide, b), wide, b)
    agree(dispatcher.run(wide, b), wide, b)
    assert chooser.asked == 2
    assert len(dispatcher._bound) == 2
    assert dispatcher.answered == {"tree": 2}
    choice = dispatcher.choice(a, b)
    assert (choice.config, choice.by, choice.time_ns) == (config(BASE), "tree", 1e3)
    assert dispatcher.problem(a, b)["layout"] == "rrr"


def test_without_a_model_it_measures_once_and_remembers(backend, tmp_path):
    """The first call measures, the next process reads; choices of another machine or compiler are kept, not used."""
    path = tmp_path / "made" / "choices.json"
    a, b = numbers((7, 16), "float32"), numbers((16, 9), "float32", 1)
    first = Dispatcher("gemm/cpu", budget=0.05, remember=path, backend=backend)
    before = backend.asked
    agree(first.run(a, b), a, b)
    agree(first.run(a, b), a, b)
    assert backend.asked == before + 1
    assert first.answered == {"measure": 1}
    again = Dispatcher("gemm/cpu", budget=0.05, remember=path, backend=backend)
    agree(again.run(a, b), a, b)
    assert again.answered == {"remembered": 1}
    assert again.choice(a, b).config == first.choice(a, b).config
    file = json.loads(path.read_text())
    file["choices"][0]["software"] = "other"
    path.write_bytes(reseal(file))
    third = Dispatcher("gemm/cpu", budget=0.05, remember=path, backend=backend)
    third.run(a, b)
    assert third.answered == {"measure": 1}
    assert {choice["software"] == "other" for choice in json.loads(path.read_text())["choices"]} == {True, False}
    assert [item.name for item in path.parent.iterdir()] == ["choices.json"], "no half-written files"


def test_a_damaged_or_foreign_memory_is_refused(backend, tmp_path):
    """A file that holds something else is named, with what to do."""
    (path := tmp_path / "choices.json").write_text("{")
    with pytest.raises(BadFile, match=r"choices.json is damaged \(.*\): remove it"):
        Dispatcher("gemm/cpu", remember=path, backend=backend)
    path.write_text('{"kind": "photos"}')
    with pytest.raises(BadFile, match=r"choices.json is not a file of measured choices: its kind is 'photos'"):
        Dispatcher("gemm/cpu", remember=path, backend=backend)
    path.write_bytes(reseal({"kind": "measured choices", "schema": 1, "family": "gemm/opencl", "choices": []}))
    with pytest.raises(BadFile, match="holds choices of gemm/opencl, not of gemm/cpu"):
        Dispatcher("gemm/cpu", remember=path, backend=backend)


def test_fallbacks_are_counted_and_what_cannot_run_is_measured(backend):
    """Outside the model: its named fallback; none, or one that this problem cannot take: measuring."""
    a, b = numbers((4, 6), "float32"), numbers((6, 5), "float32")
    outside = Dispatcher("gemm/cpu", Fixed(status=Answered.OUT_OF_RANGE, fallback=config(DIRECT)), backend=backend)
    agree(outside.run(a, b), a, b)
    assert outside.answered == {"fallback": 1}
    turned = np.ascontiguousarray(b.T).T  # by columns
    for answer, right in ((Fixed(status=Answered.UNSUPPORTED), b), (Fixed(status=Answered.OK, config=config(DIRECT)), turned)):
        dispatcher = Dispatcher("gemm/cpu", answer, budget=0.05, backend=backend)
        agree(dispatcher.run(a, right), a, right)
        assert dispatcher.answered == {"measure": 1}, "a kernel that does not pack B needs it by rows"


def test_a_model_s_kernel_that_is_wrong_here_is_not_run_when_asked_to_verify():
    """`verify` checks the choice bit for bit; one that fails gives way to the next."""

    class Broken(FewTrials):
        def prepare(self, problem, chosen):
            found = super().prepare(problem, chosen)
            if chosen == config(DIRECT):
                found.check = lambda: 1.0
            return found

    a, b = numbers((4, 6), "float32"), numbers((6, 5), "float32")
    dispatcher = Dispatcher("gemm/cpu", always(DIRECT), verify=True, budget=0.05, backend=Broken())
    agree(dispatcher.run(a, b), a, b)
    assert dispatcher.answered == {"measure": 1}
    assert dispatcher.choice(a, b).config in (config(BASE), config(DOT))


def _in_child(dispatcher, a, b, pipe):
    pipe.send(dispatcher.run(a, b))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_threads_are_part_of_the_problem_and_outlive_a_fork(backend):
    """Two threads that divide K give the same sums, in a forked child too, which has no threads of its parent's."""
    dispatcher = Dispatcher("gemm/cpu", always(SPLIT), threads=2, backend=backend)
    a, b = numbers((9, 200), "float64"), numbers((200, 7), "float64", 1)
    agree(dispatcher.run(a, b), a, b)
    assert dispatcher.problem(a, b).threads == 2
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(dispatcher, a, b, there))
    child.start()
    assert here.poll(30), "the child hangs"
    agree(here.recv(), a, b)
    child.join(30)


def test_threads_of_the_caller_share_a_dispatcher(backend):
    """Many threads with data of their own through one bound kernel: each gets its own product."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    wrong = []

    def work(seed):
        a, b = numbers((12, 40), "float64", seed), numbers((40, 8), "float64", seed + 100)
        wanted = a @ b
        wrong.extend(seed for _ in range(300) if not np.allclose(dispatcher.run(a, b), wanted, rtol=1e-12, atol=1e-12))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert dispatcher.answered == {"tree": 1}


def test_arrays_that_do_not_fit_are_refused_with_the_rule(backend):
    """Shapes, types, kinds, `out` and options: the rule, the value and what to do, and nothing is bound."""
    dispatcher = Dispatcher("gemm/cpu", always(BASE), backend=backend)
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    for arrays, rule in (
        ((a, a), r"as many columns as b has rows, got shapes \(2, 3\) and \(2, 3\): transpose"),
        ((a, b.astype(np.float64)), "of one type, got float32 and float64: convert"),
        ((a.astype(np.float16), b), "a must be of type float32, float64, int8, got float16: convert"),
        ((a, b.astype(">f4")), "b must be of type .* got >f4"),
        ((a[0], b), r"2 axes, or 3 for a batch of matrices, got shape \(3,\): reshape it \(a vector is a\[None, :\]"),
        ((np.ones((2, 2, 3), np.float32), np.ones((3, 3, 4), np.float32)), "equally many matrices"),
        ((a.tolist(), b), "a must be a plain numpy array, got list: convert it with numpy.asarray"),
        ((np.ma.array(a), b), "a must be a plain numpy array, got MaskedArray"),
        ((a,), "takes two arrays, a third as its bias, and activation=, got 1 arrays"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            dispatcher.run(*arrays)
    dispatcher.run(a, b)
    for out, rule in (
        (np.empty((4, 2), np.float32), r"out must be float32 of shape \(2, 4\), got float32 of shape \(4, 2\)"),
        (np.empty((2, 4)), "out must be float32 of shape .* got float64"),
        ([[0.0]], "out must be a plain numpy array, got list"),
        (np.broadcast_to(np.float32(0), (2, 4)), "out must be writeable"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            dispatcher.run(a, b, out=out)
    with pytest.raises(InvalidValue, match="and activation=, got 2 arrays, alpha"):
        dispatcher.run(a, b, alpha=2)
    assert len(dispatcher._bound) == 1


def test_a_dispatcher_that_cannot_work_says_so(backend):
    """Unknown families, families without arrays, numbers out of range and models of another family are refused."""
    with pytest.raises(NotFound, match="unknown family 'gemm/cup': did you mean 'gemm/cpu'"):
        Dispatcher("gemm/cup")
    with pytest.raises(NotFound, match="but not on a caller's arrays: it dispatches no family"):
        Dispatcher("gemm/opencl")
    with pytest.raises(InvalidValue, match=r"threads must be .*, got 0"):
        Dispatcher("gemm/cpu", threads=0, backend=backend)
    with pytest.raises(InvalidValue, match="budget must be a positive number of seconds, got 0"):
        Dispatcher("gemm/cpu", budget=0, backend=backend)
    other = Fixed(status=Answered.UNSUPPORTED)
    other.family = type("Other", (), {"id": "gemm/other"})()
    with pytest.raises(InvalidValue, match="the model is for gemm/other, not for gemm/cpu"):
        Dispatcher("gemm/cpu", other, backend=backend)


def test_large_problems_are_tried_in_the_small_first(backend):
    """Configs are tried for each problem, and once for the small one that stands for both."""
    a, b = numbers((120, 1024), "float32"), numbers((1024, 1024), "float32", 1)
    dispatcher = Dispatcher("gemm/cpu", budget=0.02, backend=backend)
    before = backend.asked
    agree(dispatcher.run(a, b), a, b)
    agree(dispatcher.run(a[:119], b), a[:119], b)
    assert backend.asked == before + 3
    assert dispatcher.answered == {"measure": 2}


def test_a_trained_model_chooses_and_its_fallback_serves_what_it_does_not_know(backend, tmp_path):
    """From a model directory: the kernel that was quicker on such shapes, the fallback beyond them; others are refused."""
    shared = {"problem.dtype": "fp32", "problem.layout": "rrr", "device": devices.local().name, "status": "ok", "samples": 9}
    rows = [
        {"problem.M": m, "problem.N": n, "problem.K": k, **shared, **{f"config.{name}": values[name] for name in values}}
        | {"time_ns": 1e3 + m * n * k * (1.0 if (values is DIRECT) == (m < 32) else 2.0), "time_ns_mad": 1.0}
        for m, n, k, values in itertools.product((1, 4, 16, 64, 128), (32, 64, 96), (16, 48, 80), (BASE, DIRECT))
    ]
    synthetic_dataset(tmp_path / "d", schema.conform(gemm_cpu, pl.DataFrame(rows)), gemm_cpu)
    recipe = Recipe("gbdt", {"trees": 20, "library_trees": 4, "leaves": 7, "lr": 0.3}, folds=3, threads=1)
    train(tmp_path / "d", tmp_path / "m", recipe)
    dispatcher = Dispatcher("gemm/cpu", tmp_path / "m", backend=backend)
    found = {}
    for m in (2, 100, 500):
        a, b = numbers((m, 48), "float32"), numbers((48, 64), "float32", 1)
        agree(dispatcher.run(a, b), a, b)
        found[m] = dispatcher.choice(a, b)
    assert found[2].config == config(DIRECT)
    assert found[100].config == config(BASE)
    assert found[500].by == "fallback"
    assert sum(dispatcher.answered.values()) == 3
    synthetic_dataset(tmp_path / "other", synthetic_rows(problems=12))
    train(tmp_path / "other", tmp_path / "o", recipe)
    with pytest.raises(InvalidValue, match="the model is for gemm/triton, not for gemm/cpu"):
        Dispatcher("gemm/cpu", tmp_path / "o", backend=backend)
