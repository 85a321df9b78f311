"""The matrix products of a PyTorch model, seen under fake tensors: sizes, strides and types, and no arithmetic.

A dispatch mode sees the operators after PyTorch itself has taken `linear`, `matmul` and `einsum` apart, which is what Inductor
sees too. Nothing else is decomposed: attention stays one operator, as it does in Inductor. torch is imported when a model is
traced.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

from kerncast.errors import InvalidValue, NotFound

NOT_INSTALLED = "the shapes of a model need torch, which is not installed: pip install 'kerncast[torch]'"
# Operator → where A and B are among its arguments.
PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_int_mm": (0, 1), "_scaled_mm": (0, 1)}
BIASED = ("addmm", "baddbmm")
# Operators with arithmetic like a product's that are none of the above: they are counted by name.
OTHERS = re.compile(r"conv|attention|transformer|linear|matmul|rnn|lstm|(?:^|_)gru|cdist|(?:mm|mv|dot|addr)(?:_|$)")
NOT_OTHERS = re.compile(r"^upsample|^_?prelu")

# A trace swaps the weights of a module and answers for PyTorch's own functions: one at a time.
_ALONE = threading.RLock()


@dataclass(frozen=True)
class Matrix:
    """The sizes and strides of an operand, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ProductCall:
    """One kind of product: equal calls are counted together."""

    op: str
    a: Matrix
    b: Matrix
    bias: bool


@dataclass
class Seen:
    """What a trace has met so far."""

    calls: Counter[ProductCall] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    """Operators that are no matrix products, by name."""
    folded: Counter[str] = field(default_factory=Counter)
    """Products that Inductor computes as sums of elementwise products, by operator."""


def trace(model: Any, inputs: Any, *, backward: bool) -> Seen:
    """The operators of a call of `model` (and of its backward pass) that matter here."""
    try:
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses.fake_tensor import FakeTensorMode

        import torch
    except ModuleNotFoundError as error:
        raise NotFound(NOT_INSTALLED) from error
    if not callable(model):
        raise InvalidValue(f"`model` must be a torch.nn.Module or a function, got {type(model).__name__}")
    args, kwargs = arguments(inputs)
    seen = Seen()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with _ALONE, ExitStack() as stack, _explained(model):
        stack.callback(torch.clear_autocast_cache)  # it must not keep fake weights
        stack.enter_context(_unchanged(model))
        stack.enter_context(_as_compiled())
        # PyTorch logs a traceback where an operator refuses fake tensors; here that is one sentence.
        stack.enter_context(patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True))
        converted = _Converter(fake)
        args, kwargs = converted.tree(args), converted.tree(kwargs)
        call = _functional(model, converted)
        # With the Python dispatcher, composite operators are taken apart as torch.compile takes them apart.
        for context in (enable_python_dispatcher(), fake, _recorder(seen, converted), torch.set_grad_enabled(backward)):
            stack.enter_context(context)
        result = call(*args, **kwargs)
        if backward:
            _differentiate(result)
    return seen


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a tuple, a dict of keywords, or the pair (tuple or list, dict)."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, list | tuple) and len(inputs) == 2:
        first, second = inputs
        if isinstance(first, list | tuple) and isinstance(second, Mapping) and all(isinstance(name, str) for name in second):
            return tuple(first), dict(second)
    # A named tuple is one argument: the model may ask it for its names.
    several = isinstance(inputs, list | tuple) and not hasattr(inputs, "_fields")
    return (tuple(inputs) if several else (inputs,)), {}


class _Converter:
    """Fake tensors for real ones, one for each; those without memory (device meta) count as on the CPU."""

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.known: dict[int, tuple[Any, Any]] = {}

    def tensor(self, given: Any) -> Any:
        import torch

        # The original is kept with its copy: its id may not be given to another tensor.
        if id(given) not in self.known:
            if given.device.type == "meta" and given.layout is torch.strided:
                with self.fake:
                    made = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device="cpu")
                made.requires_grad_(given.requires_grad)
            else:
                made = self.fake.from_tensor(given)
            self.known[id(given)] = given, made
        return self.known[id(given)][1]

    def tree(self, given: Any) -> Any:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils._pytree import tree_map_only

        def converted(tensor: Any) -> Any:
            return tensor if isinstance(tensor, FakeTensor) else self.tensor(tensor)

        return tree_map_only(import_module("torch").Tensor, converted, given)


def _functional(model: Any, converted: _Converter) -> Callable[..., Any]:
    """A call of the model with fake weights; a function gets fakes of what it refers to when an operator meets them."""
    import torch

    if not isinstance(model, torch.nn.Module):
        return model  # type: ignore[no-any-return]
    found = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    if any(torch.nn.parameter.is_lazy(tensor) for _, tensor in found):
        raise InvalidValue(
            "the model has lazy layers, whose sizes are not known yet: call it once, or give the layers their sizes"
        )
    weights = {name: converted.tensor(tensor) for name, tensor in found}
    return lambda *args, **kwargs: torch.func.functional_call(model, weights, args, kwargs)


def _recorder(seen: Seen, converted: _Converter) -> Any:
    """A dispatch mode that counts products."""
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Recorder(base):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if not hasattr(func, "_schema"):
                return self._whole(func, args, kwargs)
            # In inference mode, composite operators come here whole.
            if func.namespace != "prim" and func._can_decompose():
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            name = func._schema.name.rpartition("::")[2].removesuffix("_")
            if not name.startswith("lift"):  # of `torch.tensor(3)`: its value is known and may be read
                # What a function refers to is real: an operator in place must not change it.
                args, kwargs = converted.tree(args), converted.tree(kwargs)
            if name in PRODUCTS:
                self._product(name, func, args, kwargs)
            elif OTHERS.search(name) and not NOT_OTHERS.search(name):
                seen.others[name] += 1
            return func(*args, **kwargs)

        def _product(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
            call = _call(name, args, kwargs)
            # Inductor takes apart only products with a side of 1; loading its rules takes a second.
            rule = _inductor_rules().get(func) if 1 in (*call.a.size[-2:], call.b.size[-1]) else None
            if rule is not None and rule(*args, **kwargs) is not NotImplemented:
                seen.folded[name] += 1
            else:
                seen.calls[call] += 1

        def _whole(self, func: Any, args: Any, kwargs: Any) -> Any:
            """An operator that takes functions: attention is counted, what others compute inside is not seen here."""
            name = str(func.name())
            if "attention" not in name:
                raise InvalidValue(
                    f"{name} computes with functions that are not looked into: give the part of the model inside it"
                )
            seen.others[name] += 1
            return func(*args, **kwargs)

    return Recorder()


def _inductor_rules() -> Mapping[Any, Callable[..., Any]]:
    try:
        rules: Mapping[Any, Callable[..., Any]] = import_module("torch._inductor.decomposition").decompositions
    except (ImportError, AttributeError):
        return {}
    return rules


def _call(name: str, args: Any, kwargs: Mapping[str, Any]) -> ProductCall:
    names = ("self", "mat2") if PRODUCTS[name][0] == 0 else ("mat1" if name == "addmm" else "batch1", "mat2")
    a, b = (args[at] if at < len(args) else kwargs[keyword] for at, keyword in zip(PRODUCTS[name], names, strict=True))
    bias = name in BIASED and _is_vector(args[0], int(b.shape[-1]))
    if name == "_scaled_mm":
        bias = (args[4] if len(args) > 4 else kwargs.get("bias")) is not None
    return ProductCall(name, _matrix(a), _matrix(b), bias)


def _is_vector(added: Any, columns: int) -> bool:
    """Whether a tensor adds the same row to every row of the result."""
    sizes, strides = tuple(added.shape), tuple(added.stride())
    rows_alike = all(size == 1 or stride == 0 for size, stride in zip(sizes[:-1], strides[:-1], strict=True))
    return bool(sizes) and sizes[-1] == columns and rows_alike


def _matrix(tensor: Any) -> Matrix:
    return Matrix(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), str(tensor.dtype).removeprefix("torch."))


def _differentiate(result: Any) -> None:
    """Run the backward pass from every output, without touching `.grad` of anything."""
    from torch.utils._pytree import tree_leaves

    import torch

    outputs = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor) and item.requires_grad]
    leaves = _leaves(outputs)
    if not leaves:
        raise InvalidValue("nothing in the model's output needs a gradient, so there is no backward pass: leave `backward` out")
    # As torch.compile assumes: a gradient is stored as its output is.
    given = [torch.empty_like(item) for item in outputs]
    torch.autograd.grad(outputs, leaves, given, allow_unused=True)


def _leaves(outputs: list[Any]) -> list[Any]:
    """The tensors that gradients are for: weights and inputs."""
    found: dict[int, Any] = {id(item): item for item in outputs if item.grad_fn is None}
    nodes = [item.grad_fn for item in outputs if item.grad_fn is not None]
    known = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        new = {following for following, _ in node.next_functions if following is not None} - known
        known |= new
        nodes.extend(new)
    return list(found.values())


def _referred(model: Any) -> list[Any]:
    """The module itself, or those that a function refers to by name."""
    import torch

    found: list[Any] = [model, getattr(model, "__self__", None), *getattr(model, "args", ())]
    inner = getattr(model, "func", model)  # of functools.partial
    found += [inner, getattr(inner, "__self__", None)]
    if inspect.isfunction(inner):
        names = inspect.getclosurevars(inner)
        found += [*names.nonlocals.values(), *names.globals.values()]
    return [item for item in found if isinstance(item, torch.nn.Module)]


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Put back what the modules kept of the call: a cache of fake tensors would break the next real one."""
    tables = [vars(module) for owner in _referred(model) for module in owner.modules()]
    tables += [table[name] for table in tables for name in ("_parameters", "_buffers", "_modules") if name in table]
    kept = [(table, dict(table)) for table in tables]
    try:
        yield
    finally:
        for table, before in kept:
            table.clear()
            table.update(before)


@contextmanager
def _as_compiled() -> Iterator[None]:
    """Layers that ask whether they are compiled get the answer that torch.compile gives them.

    Eager MultiheadAttention is one fused operator for inference, and eager flex attention compiles itself.
    """
    answers = (
        ("torch.nn.modules.activation", "_is_make_fx_tracing", lambda: True),
        ("torch.nn.attention.flex_attention", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
    )
    with ExitStack() as stack:
        for module, name, answer in answers:
            if hasattr(sys.modules.get(module), name):
                stack.enter_context(patch.object(sys.modules[module], name, answer))
        yield


@contextmanager
def _explained(model: Any) -> Iterator[None]:
    """Say in a sentence what cannot be traced."""
    from torch._subclasses import fake_tensor

    def kinds(*names: str) -> tuple[type[Exception], ...]:
        return tuple(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name))

    def said(error: Exception) -> str:
        return " ".join(str(getattr(error, "func", "") or error).split())[:200]

    name = type(model).__name__ if hasattr(model, "modules") else getattr(model, "__name__", type(model).__name__)
    try:
        yield
    except (InvalidValue, NotFound):
        raise
    except kinds("DataDependentOutputException", "DynamicOutputShapeException") as error:
        raise InvalidValue(
            f"{name} reads the values of a tensor ({said(error)}), and without running it there are none: "
            "give the part of the model that does not decide by its data"
        ) from error
    except kinds("UnsupportedOperatorException", "UnsupportedFakeTensorException") as error:
        raise InvalidValue(
            f"{name} calls an operator that PyTorch cannot run without data ({said(error)}): "
            "give the part of the model without it, or register a fake implementation of it"
        ) from error
    except Exception as error:
        raise InvalidValue(
            f"{name} cannot be called with these inputs without data ({type(error).__name__}: {said(error)}): check that it "
            "runs on real tensors, and that it does not leave PyTorch (NumPy, files)"
        ) from error
