"""`shapes_of`: the products that Inductor would report, found without data; and what is no product or cannot be traced."""

import json
import sys
from collections import Counter
from importlib.util import find_spec

import pytest

import kerncast
from kerncast.answering.inputs import read_problem_file
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.ops.gemm import gemm
from kerncast.library.problems import problem_set
from kerncast.torch import shapes_of
from kerncast.torch.shape_tracing import Matrix
from kerncast.torch.shapes import storage

pytestmark = pytest.mark.needs("torch")
if find_spec("torch") is not None:
    from torch.nn import functional

    import torch
    from torch import nn

    class Everything(nn.Module):
        """Linear with and without bias and with tied weights, attention, einsum, gaps, single rows, autocast, convolution."""

        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 32)
            self.head = nn.Linear(32, 50, bias=False)
            self.head.weight = self.words.weight
            self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32, bias=False)
            self.one, self.tiny = nn.Linear(32, 1), nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
            self.conv = nn.Conv2d(1, 2, 3)
            self.square = nn.Parameter(torch.randn(32, 16))

        def forward(self, tokens):
            x = self.words(tokens)
            y = self.down(functional.relu(self.up(x)))
            flat = y.reshape(-1, 32)
            q = y.view(2, 6, 4, 8).transpose(1, 2)
            scores = (q @ q.transpose(-1, -2)).tanh() @ q
            with torch.autocast("cpu", torch.bfloat16):
                low = self.up(x)
            return (
                self.head(y), self.head(x.transpose(0, 1)), scores, low,
                torch.einsum("bij,bkj->bik", y, y), functional.scaled_dot_product_attention(q, q, q),
                flat[:, :16] @ self.square[:16], flat.t() @ flat, flat[:1] @ self.square,
                self.one(flat), self.one(flat[:1]), self.tiny(flat[:1, :8]), torch.dot(flat[0], flat[1]),
                self.attention(y, y, y, need_weights=False)[0], self.conv(y[:, None]),
            )  # fmt: skip


def counted(shapes):
    """Products as `reported` says them, once with the strides of B and once without."""
    from compiled import strides_of

    found = Counter()
    for item in shapes.products:
        sizes = tuple(item.problem[name] for name in ("batch", "M", "N", "K"))
        strides = (strides_of(side.size, side.stride) for side in (item.a, item.b))
        found[(*sizes, item.a.dtype, *strides)] += item.count
    return found


def without_b(found, of):
    """As Inductor says products with packed weights: their strides are not known any more."""
    packed = {key for key in of if key[-1] is None}
    told = Counter()
    for key, count in found.items():
        told[(*key[:-1], None) if (*key[:-1], None) in packed and key not in of else key] += count
    return told


@pytest.fixture(autouse=True)
def helpers(monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch, when Inductor is imported
def test_they_are_the_products_that_inductor_reports():
    """With max-autotune and freezing: sizes, strides, types and how often; and the same in training, with backward."""
    from compiled import reported

    model, tokens = Everything().eval(), torch.zeros(2, 6, dtype=torch.long)
    expected, found = reported(model, (tokens,)), shapes_of(model, tokens)
    assert sum(expected.values()) == found.count == 14
    assert without_b(counted(found), expected) == expected
    assert {(item.op, item.count) for item in found.left_out} == {
        ("_scaled_dot_product_flash_attention_for_cpu", 2), ("convolution", 1), ("dot", 1), ("addmm", 2),
    }  # fmt: skip
    layers = nn.Sequential(nn.Linear(30, 17), nn.ReLU(), nn.Linear(17, 9, bias=False))
    x = torch.randn(3, 4, 30)
    expected, found = reported(layers, (x,), backward=True), shapes_of(layers, x, backward=True)
    assert counted(found) == expected
    assert [dict(item.problem)["layout"] for item in found.products] == ["rcr", "rcr", "crr", "rrr", "crr"]


def test_problems_are_ready_for_the_rest_of_kerncast(tmp_path):
    """Each is a valid problem of gemm; a saved file and the object itself serve as a problem set."""
    found = shapes_of(Everything(), torch.zeros(2, 6, dtype=torch.long))
    assert [Problem(gemm, item) for item in found]
    gaps = next(item for item in found if item.get("lda"))
    assert gaps == {"M": 12, "N": 16, "K": 16, "batch": 1, "dtype": "fp32", "layout": "rrr", "lda": 32}
    assert {"M": 12, "N": 48, "K": 32, "batch": 1, "dtype": "bf16", "layout": "rcr", "bias": True} in list(found)
    path = found.save(tmp_path / "problems.json")
    assert problem_set(gemm, [str(path)]).height == len(found) == len(list(found))
    assert {tuple(item.items()) for item in read_problem_file(path, gemm)} == {tuple(item.items()) for item in found}
    alone = shapes_of(Everything(), torch.zeros(2, 6, dtype=torch.long), bias=False)
    assert alone.count == found.count
    assert not any("bias" in item for item in alone)
    sweep = kerncast.sweep("gemm/triton", problems=alone, device="a100", configs="sample:1")
    assert sweep.problem_count == len(alone)
    assert json.loads(json.dumps(found.as_json()))["products"][0]["count"] >= 1
    assert repr(found).splitlines()[0].endswith("different problems")
    assert "left out: 1 × convolution (no matrix product)" in repr(found)
    assert "<table" in found._repr_html_()
    with pytest.raises(InvalidValue, match=r"must be \.json"):
        found.save(tmp_path / "problems.txt")


def test_a_model_that_fits_into_no_memory_is_traced():
    """Terabytes of weights on device meta; layers that occur twice are counted; the inputs may be there, too."""
    with torch.device("meta"):
        block = nn.Sequential(nn.Linear(2**20, 2**18, bias=False), nn.SiLU(), nn.Linear(2**18, 2**20, bias=False))
        x = torch.empty(16, 2**20, dtype=torch.bfloat16)
    found = shapes_of(nn.Sequential(*[block] * 5).bfloat16(), x, backward=True)
    assert found.count == 5 * 6 - 1  # the input needs no gradient
    assert found.products[0].count == 5
    assert found.products[0].problem == {"M": 16, "N": 2**18, "K": 2**20, "batch": 1, "dtype": "bf16", "layout": "rcr"}


def test_nothing_that_exists_is_changed():
    """Weights, statistics, gradients and what a forward pass keeps; also of a module that a function refers to."""

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.kept = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), None
            self.plain = torch.ones(8, 8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, *, scale):
            self.kept, self.calls = x, self.calls + 1
            self.plain.add_(1)
            return self.layers(x) @ self.plain * scale * torch.tensor(2.0).item()

    model, x, scale = Keeps(), torch.randn(4, 8), torch.ones(())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ways = [(model, ((x,), {"scale": scale})), (lambda x: model(x, scale=scale), x), (model.forward, {"x": x, "scale": scale})]
    for way, inputs in ways:
        found = shapes_of(way, inputs, backward=True)
        assert [item.op for item in found.products] == ["addmm", "mm", "mm", "mm"]
    del model.kept
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(item) is nn.Parameter and item.grad is None for item in model.parameters())
    assert torch.equal(model.plain, torch.ones(8, 8))


@pytest.mark.parametrize(
    ("model", "inputs", "why"),
    [
        (lambda x: x @ x if x.sum() > 0 else x, lambda: torch.ones(2, 2), "reads the values of a tensor .aten._local_scalar"),
        (lambda x: x[x > 0], lambda: torch.ones(2), "reads the values of a tensor .aten.nonzero"),
        (lambda x: x.numpy(), lambda: torch.ones(2), "does not leave PyTorch"),
        (lambda x: x @ x, lambda: torch.ones(2, 3), "check that it runs on real tensors"),
        (lambda: nn.LazyLinear(3), lambda: torch.ones(2, 3), "lazy layers"),
        (3, lambda: torch.ones(2), "must be a torch.nn.Module or a function, got int"),
    ],
)
def test_what_cannot_be_traced_is_said_in_a_sentence(model, inputs, why, capfd):
    """Not with a traceback of PyTorch's own, which it would log."""
    if getattr(model, "__code__", None) is not None and not model.__code__.co_argcount:
        model = model()
    with pytest.raises(InvalidValue, match=why):
        shapes_of(model, inputs())
    assert capfd.readouterr().err == ""


def test_what_is_no_problem_of_gemm_is_counted():
    """Empty products, other dtypes, a backward pass of nothing; integers and fp8 are products."""
    a = torch.ones(32, 32)
    for left, why in ((a[:0], "an empty product"), (a.to(torch.complex64), "gemm has no dtype complex64")):
        found = shapes_of(lambda x, y: x @ y, (left, a.to(left.dtype)))
        assert [(item.op, item.why, item.count) for item in found.left_out] == [("mm", why, 1)]
        assert repr(found) == f"no matrix product\nleft out: 1 × mm ({why})"
        assert len(found) == 0
    whole = a.to(torch.int8)
    assert [item["dtype"] for item in shapes_of(torch._int_mm, (whole, whole))] == ["int8"]
    with pytest.raises(InvalidValue, match="no backward pass: leave `backward` out"):
        shapes_of(lambda x: x @ x, a, backward=True)


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        ((4, 6), (6, 1), (True, None)),
        ((4, 6), (9, 1), (True, 9)),
        ((4, 6), (1, 4), (False, None)),
        ((4, 6), (1, 9), (False, 9)),
        ((4, 6), (2, 16), (True, None)),  # copied first, as are overlapping rows
        ((4, 6), (0, 1), (True, None)),
        ((4, 6), (1, 0), (True, None)),
        ((4, 6), (1, 1), (True, None)),
        ((1, 6), (99, 1), (True, None)),
        ((1, 6), (99, 3), (False, 3)),
        ((6, 1), (1, 6), (False, None)),
        ((6, 1), (1, 1), (True, None)),
        ((6, 1), (5, 1), (True, 5)),
        ((6, 1), (5, 7), (True, 5)),
        ((3, 4, 6), (1000, 9, 1), (True, 9)),
    ],
)
def test_strides_become_an_order_and_a_leading_dimension(size, stride, expected):
    """The stride of a side of one element says nothing."""
    assert storage(Matrix(size, stride, "float32")) == expected


MODEL = """
import torch
from neighbour import WIDTH

def example():
    return torch.nn.Linear(WIDTH, 4), torch.ones(3, WIDTH)

def two():
    return 1, 2, 3

def fails():
    raise RuntimeError("no such checkpoint")
"""


def test_the_command_line_lists_and_saves_them(tmp_path, run):
    """A table, JSON, a file for `collect`; a file that is wrong is said in one sentence with its line."""
    (tmp_path / "neighbour.py").write_text("WIDTH = 8\n")
    file, out = tmp_path / "model.py", tmp_path / "problems.json"
    file.write_text(MODEL)
    code, shown, _ = run("torch", "shapes", file, "--no-bias", "--out", out)
    assert code == 0
    assert "1 matrix product, 1 different problem" in shown
    assert f"--problems {out}" in shown
    assert json.loads(out.read_text())[0]["problem"] == {"M": 3, "N": 4, "K": 8, "batch": 1, "dtype": "fp32", "layout": "rcr"}
    _, shown, _ = run("torch", "shapes", f"{file}:example", "--backward", "--json")
    assert [item["op"] for item in json.loads(shown)["products"]] == ["addmm", "mm"]
    wrong = {":two": "must return (model, inputs)", ":fails": "line 12: fails() failed with RuntimeError: no such checkpoint",
             ":exampl": "did you mean 'example'?", ":a b": "FILE.py:function"}  # fmt: skip
    for name, why in wrong.items():
        code, _, said = run("torch", "shapes", f"{file}{name}")
        assert code == 2
        assert why in said
        assert len(said.splitlines()) == 1
    file.write_text("import torch\n1 / 0\n")
    assert "line 2: it failed with ZeroDivisionError" in run("torch", "shapes", file)[2]
    assert str(tmp_path) not in sys.path


def test_without_torch_it_names_the_extra(monkeypatch):
    """The package is lazy: it is missed when it is used."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotFound, match=r"pip install 'kerncast\[torch\]'"):
        shapes_of(print, ())
