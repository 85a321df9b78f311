"""Convolutions of a caller's own arrays: which problem they make, and a kernel that is pointed at them in each call.

    forward      run(x, w, stride=1, padding=0, dilation=1, groups=1, layout="nhwc")
    bwd data     run(dy, w, input_size=(56, 56), …)
    bwd weight   run(x, dy, filter_size=(3, 3), …)

Arrays of 4 axes are images, of 5 volumes. `stride`, `padding` and `dilation` are one number for all axes or a tuple,
outermost first. With a stride, several input sizes give the same output size, so the size must be given.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from kerncast.core.arrays import Array
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.contract import Bound, Call
from kerncast.measuring.backends.cpu.gemm.arrays import IntoOut, Nothing, address, check_array

TYPES = {np.dtype(np.float32): "fp32", np.dtype(np.float64): "fp64"}
STEPS = {"stride": 1, "padding": 0, "dilation": 1}
AXES = ("d", "h", "w")
Steps = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Tensor:
    """The shape of an array of either layout, split into its axes."""

    outermost: int
    pixels: tuple[int, ...]
    channels: int

    @classmethod
    def of(cls, shape: tuple[int, ...], layout: str) -> _Tensor:
        return cls(shape[0], shape[1:-1], shape[-1]) if layout == "nhwc" else cls(shape[0], shape[2:], shape[1])

    def shape(self, layout: str) -> tuple[int, ...]:
        if layout == "nhwc":
            return (self.outermost, *self.pixels, self.channels)
        return (self.outermost, self.channels, *self.pixels)


@dataclass(frozen=True)
class _Sizes:
    """The sizes that the arrays give; `made` are the pixels of the output."""

    images: int
    channels: int
    filters: int
    image: tuple[int, ...]
    taps: tuple[int, ...]
    made: tuple[int, ...]


@dataclass(frozen=True)
class Convolution(Call):
    """A convolution or one of its gradients, given by two arrays and the attributes above."""

    names: ClassVar[tuple[str, str]] = ("x", "w")
    size: ClassVar[str | None] = None
    """The attribute that says what the shapes of the arrays leave open."""

    problem: tuple[tuple[str, int | str], ...]
    shape: tuple[int, ...]
    """The shape of the result."""
    dtype: str
    empty: bool

    @staticmethod
    def signature(*arrays: Array, **attributes: Hashable) -> Hashable:
        a, b = arrays
        return type(a), type(b), a.shape, b.shape, a.dtype, b.dtype, *attributes.items()

    @classmethod
    def of(cls, *arrays: Array, **attributes: Hashable) -> Self:
        first, second = cls._checked(arrays, attributes)
        axes = first.ndim - 2
        layout = attributes.get("layout", "nhwc")
        if layout not in ("nhwc", "nchw"):
            raise InvalidValue(f"layout must be nhwc (channels last) or nchw (channels first), got {layout!r}")
        groups = _whole(attributes.get("groups", 1), 1)
        if groups is None:
            raise InvalidValue(f"groups must be a whole number of at least 1, got {attributes['groups']!r}")
        steps = {name: _per_axis(name, attributes.get(name, default), axes, least=default) for name, default in STEPS.items()}
        given = None if cls.size is None or cls.size not in attributes else _per_axis(cls.size, attributes[cls.size], axes, 1)
        first_axes, second_axes = (_Tensor.of(array.shape, str(layout)) for array in (first, second))
        sizes, result = cls._sizes(first_axes, second_axes, steps, groups, given)
        values: dict[str, int | str] = {"N": sizes.images, "C": sizes.channels, "K": sizes.filters, "G": groups}
        lead = (1,) * (3 - axes)
        values |= dict(zip(("Di", "Hi", "Wi"), (*lead, *sizes.image), strict=True))
        values |= dict(zip(("Z", "Y", "X"), (*lead, *sizes.taps), strict=True))
        for name, prefix in (("stride", "stride"), ("padding", "pad"), ("dilation", "dilation")):
            filled = (*(STEPS[name],) * (3 - axes), *steps[name])
            values |= {f"{prefix}_{axis}": value for axis, value in zip(AXES, filled, strict=True)}
        values |= {"dtype": TYPES[first.dtype], "layout": str(layout)}
        empty = 0 in (sizes.images, sizes.channels, sizes.filters)
        return cls(tuple(values.items()), result.shape(str(layout)), TYPES[first.dtype], empty)

    @classmethod
    def _checked(cls, arrays: tuple[Array, ...], attributes: Mapping[str, Hashable]) -> tuple[Array, Array]:
        known = (*STEPS, "groups", "layout", *([cls.size] if cls.size else []))
        unknown = [name for name in attributes if name not in known]
        if len(arrays) != 2 or unknown:
            given = unknown[0] if unknown else f"{len(arrays)} arrays"
            raise InvalidValue(f"call run({', '.join(cls.names)}) with {', '.join(known)} and out at most, got {given}")
        for name, array in zip(cls.names, arrays, strict=True):
            check_array(name, array)
            if array.ndim not in (4, 5):
                raise InvalidValue(f"{name} must have 4 axes (images) or 5 (volumes), got shape {array.shape}: reshape it")
            if array.dtype not in TYPES:
                raise InvalidValue(f"{name} must be float32 or float64, got {array.dtype}: convert it with {name}.astype(…)")
        first, second = arrays
        if first.ndim != second.ndim or first.dtype != second.dtype:
            one, other = cls.names
            raise InvalidValue(
                f"{one} and {other} must have the same rank and one type, got shapes {first.shape} and {second.shape}, "
                f"{first.dtype} and {second.dtype}: reshape or convert one"
            )
        return first, second

    @classmethod
    @abc.abstractmethod
    def _sizes(
        cls, first: _Tensor, second: _Tensor, steps: Steps, groups: int, given: tuple[int, ...] | None
    ) -> tuple[_Sizes, _Tensor]:
        """What the two arrays and the attributes say together, and the axes of the result; refused where they contradict."""

    @property
    def values(self) -> Mapping[str, int | bool | str]:
        return dict(self.problem)

    def without_kernel(self) -> Bound | None:
        return Nothing(self.shape, self.dtype) if self.empty else None


def _whole(value: object, least: int) -> int | None:
    """A whole number of at least `least`, or None."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        return None
    return int(value)


def _per_axis(name: str, value: object, axes: int, least: int) -> tuple[int, ...]:
    values = value if isinstance(value, tuple) else (value,) * axes
    numbers = [number for item in values if (number := _whole(item, least)) is not None]
    if len(values) != axes or len(numbers) != axes:
        raise InvalidValue(
            f"{name} must be a whole number ≥ {least}, or a tuple of {axes} (one for each axis of a pixel), got {value!r}"
        )
    return tuple(numbers)


def _outputs(image: tuple[int, ...], taps: tuple[int, ...], steps: Steps) -> tuple[int, ...]:
    """The sizes of the output; refused where the filter does not fit."""
    made = tuple(
        (size + 2 * pad - (tap - 1) * dilation - 1) // stride + 1
        for size, tap, stride, pad, dilation in zip(
            image, taps, steps["stride"], steps["padding"], steps["dilation"], strict=True
        )
    )
    if min(made) < 1 or min((*image, *taps)) < 1:
        raise InvalidValue(
            f"the dilated filter must fit into the padded input, got a filter of {taps} with dilation {steps['dilation']} on "
            f"{image} with padding {steps['padding']}: pad more, or take a smaller filter"
        )
    return made


def _equal(what: str, wanted: object, given: object) -> None:
    if wanted != given:
        raise InvalidValue(f"{what} must be {wanted} for these arrays, got {given}: check shapes, groups and layout")


def _open_size(name: str, steps: Steps, given: tuple[int, ...] | None) -> None:
    if given is None and max(steps["stride"]) > 1:
        raise InvalidValue(f"with a stride of {steps['stride']} several sizes lead to these shapes: give one with {name}=(…)")


class ForwardCall(Convolution):
    """`run(x, w)`: the convolution."""

    @classmethod
    def _sizes(
        cls, first: _Tensor, second: _Tensor, steps: Steps, groups: int, given: tuple[int, ...] | None
    ) -> tuple[_Sizes, _Tensor]:
        _equal("the channels of x", second.channels * groups, first.channels)
        made = _outputs(first.pixels, second.pixels, steps)
        sizes = _Sizes(first.outermost, first.channels, second.outermost, first.pixels, second.pixels, made)
        return sizes, _Tensor(sizes.images, sizes.made, sizes.filters)


class BwdDataCall(Convolution):
    """`run(dy, w, input_size=…)`: the gradient of the input."""

    names = ("dy", "w")
    size = "input_size"

    @classmethod
    def _sizes(
        cls, first: _Tensor, second: _Tensor, steps: Steps, groups: int, given: tuple[int, ...] | None
    ) -> tuple[_Sizes, _Tensor]:
        _equal("the channels of dy", second.outermost, first.channels)
        _open_size("input_size", steps, given)
        image = given or tuple(
            size - 2 * pad + (tap - 1) * dilation
            for size, tap, pad, dilation in zip(first.pixels, second.pixels, steps["padding"], steps["dilation"], strict=True)
        )
        _equal("the pixels of dy", _outputs(image, second.pixels, steps), first.pixels)
        sizes = _Sizes(first.outermost, second.channels * groups, first.channels, image, second.pixels, first.pixels)
        return sizes, _Tensor(sizes.images, sizes.image, sizes.channels)


class BwdWeightCall(Convolution):
    """`run(x, dy, filter_size=…)`: the gradient of the weights."""

    names = ("x", "dy")
    size = "filter_size"

    @classmethod
    def _sizes(
        cls, first: _Tensor, second: _Tensor, steps: Steps, groups: int, given: tuple[int, ...] | None
    ) -> tuple[_Sizes, _Tensor]:
        _equal("the images of dy", first.outermost, second.outermost)
        _open_size("filter_size", steps, given)
        taps = given or tuple(
            (size + 2 * pad - made) // dilation + 1
            for size, made, pad, dilation in zip(first.pixels, second.pixels, steps["padding"], steps["dilation"], strict=True)
        )
        _equal("the pixels of dy", _outputs(first.pixels, taps, steps), second.pixels)
        sizes = _Sizes(first.outermost, first.channels, second.channels, first.pixels, taps, second.pixels)
        return sizes, _Tensor(sizes.filters, sizes.taps, sizes.channels // groups)


CALLS: dict[str, type[Call]] = {
    "grouped_conv_forward/cpu": ForwardCall,
    "grouped_conv_bwd_data/cpu": BwdDataCall,
    "grouped_conv_bwd_weight/cpu": BwdWeightCall,
}


class BoundConvolution(IntoOut):
    """One kernel, pointed at the arrays of each call; `launch` takes the addresses of both operands and the result."""

    def __init__(self, call: Convolution, launch: Callable[[int, int, int], object]) -> None:
        super().__init__(call.shape, call.dtype)
        self._launch, self._lock = launch, threading.Lock()

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        # Kernels take arrays without gaps; other arrays are copied.
        first, second = (np.require(array, requirements=("C", "A")) for array in arrays)
        if out is not None:
            self.check_out(out)
        direct = (
            out is not None
            and out.flags.c_contiguous
            and out.flags.aligned
            and not any(np.may_share_memory(out, array) for array in (first, second))
        )
        made = out if direct and out is not None else np.empty(self.shape, self.dtype)
        with self._lock:
            self._launch(address(first), address(second), address(made))
        if out is None or made is out:
            return made
        out[...] = made
        return out
