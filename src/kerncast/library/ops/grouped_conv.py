"""Grouped convolution in two and three dimensions: the result, and the gradients of its input and of its weights.

A 2-D convolution is a 3-D one with a depth of 1. C and K count the channels of all groups together. All three
directions multiply the same numbers, so their FLOPs are equal; they differ as matrix products: which sizes are the rows
and columns, and which is summed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import ConstantTable, Expr, Namespace, ceil_div, floor_div, log2, lookup, maximum
from kerncast.core.op import Op, Work
from kerncast.core.parameters import Categorical, Int
from kerncast.core.space import Constraint

AXES = ("d", "h", "w")
INPUT, FILTER, OUTPUT = ("Di", "Hi", "Wi"), ("Z", "Y", "X"), ("Do", "Ho", "Wo")
LOGGED = ("N", "C", "K", "G", "Hi", "Wi", "C_per_group", "K_per_group")
# Larger strides and dilations are taken for typing errors.
WIDEST = 64
# With fewer channels a group, a vector or a matrix instruction is not filled (CK Tile's own limit).
SMALL_GROUP = 16
# With fewer images, a batch leaves most of a GPU idle (CK Tile's own limit).
SMALL_BATCH = 8
_GCD = ConstantTable.of([[float(math.gcd(a, b)) if a and b else 1.0 for b in range(WIDEST + 1)] for a in range(WIDEST + 1)])


class GroupedConv(Op):
    """What the three directions share; not an op itself."""

    parameters = {
        "N": Int(1, 2**24, doc="images"),
        "C": Int(1, 2**24, doc="input channels of all groups"),
        "K": Int(1, 2**24, doc="output channels of all groups"),
        "G": Int(1, 2**24, default=1, doc="groups; C and K are multiples of it"),
        "Di": Int(1, 2**20, default=1, doc="depth of the input; 1 in two dimensions"),
        "Hi": Int(1, 2**20, doc="height of the input"),
        "Wi": Int(1, 2**20, doc="width of the input"),
        "Z": Int(1, 2**10, default=1, doc="depth of the filter"),
        "Y": Int(1, 2**10, doc="height of the filter"),
        "X": Int(1, 2**10, doc="width of the filter"),
        **{f"stride_{axis}": Int(1, WIDEST, default=1) for axis in AXES},
        **{f"pad_{axis}": Int(0, 2**10, default=0, doc="zeros on either side") for axis in AXES},
        **{f"dilation_{axis}": Int(1, WIDEST, default=1) for axis in AXES},
        "dtype": dtype_parameter("fp64", "fp32", "fp16", "bf16", "fp8", "bf8", "int8", doc="element type of input and weights"),
        "layout": Categorical(
            {"nhwc": 0, "nchw": 1}, default="nhwc", doc="channels last (weights K Z Y X C/G) or first (weights K C/G Z Y X)"
        ),
    }
    split_group = (
        "N", "C", "K", "G", *INPUT, *FILTER, *(f"{name}_{axis}" for name in ("stride", "pad", "dilation") for axis in AXES),
    )  # fmt: skip
    splits = {"channels": ("C", "K", "G"), "spatial": ("Di", "Hi", "Wi")}
    line_group = ("dtype", "layout")
    bands = {
        "Hi": (("small (to 14)", 14), ("medium (to 56)", 56), ("large", float("inf"))),
        "C": (("few channels (to 32)", 32), ("some (to 128)", 128), ("many", float("inf"))),
        "G": (("one group", 1), ("a few (to 8)", 8), ("many", float("inf"))),
    }

    def constraints(self, p: Namespace) -> list[Constraint]:
        depth, height, width = self._room(p)
        fits = (depth >= 0) & (height >= 0) & (width >= 0)
        return [
            Constraint("groups", "C and K must be multiples of G", (p.C % p.G == 0) & (p.K % p.G == 0)),
            Constraint("reach", "the dilated filter must fit into the padded input in every dimension", fits),
        ]

    @staticmethod
    def _room(p: Namespace) -> list[Expr]:
        """How far the filter can move along each axis: the padded input minus the dilated filter."""
        room = []
        for axis, size, taps in zip(AXES, INPUT, FILTER, strict=True):
            reach = (getattr(p, taps) - 1) * getattr(p, f"dilation_{axis}") + 1
            room.append(getattr(p, size) + 2 * getattr(p, f"pad_{axis}") - reach)
        return room

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        steps = zip(AXES, OUTPUT, self._room(p), strict=True)
        sizes = {name: floor_div(room, getattr(p, f"stride_{axis}")) + 1 for axis, name, room in steps}
        known = Namespace(self.name, {**{name: getattr(p, name) for name in self.parameters}, **sizes})
        m, n, k, count = self.product(known)
        return {
            **sizes,
            "C_per_group": p.C / p.G,
            "K_per_group": p.K / p.G,
            "gemm_m": m,
            "gemm_n": n,
            "gemm_k": k,
            "gemm_count": count,
            "element_bytes": bytes_per_element(p.dtype),
        }

    def product(self, p: Namespace) -> tuple[Expr, Expr, Expr, Expr]:
        """The direction as matrix products: rows, columns, depth of the sum, and number of products."""
        raise NotImplementedError

    def work(self, p: Namespace) -> Work:
        taps = p.Z * p.Y * p.X
        outputs = p.N * p.Do * p.Ho * p.Wo * p.K
        elements = p.N * p.Di * p.Hi * p.Wi * p.C + p.K * p.C_per_group * taps + outputs
        return Work(flops=2 * outputs * p.C_per_group * taps, bytes=elements * p.element_bytes)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        work = self.work(p)
        roofline = work.roofline_ns(hw)
        image, made, taps = p.Di * p.Hi * p.Wi, p.Do * p.Ho * p.Wo, p.Z * p.Y * p.X
        strides = p.stride_d * p.stride_h * p.stride_w
        reach_h, reach_w = (p.Y - 1) * p.dilation_h + 1, (p.X - 1) * p.dilation_w + 1
        return {
            **{name: getattr(p, name) for name in self.parameters},
            **{name: getattr(p, name) for name in ("Do", "Ho", "Wo", "element_bytes")},
            **{f"log2_{name}": log2(getattr(p, name)) for name in LOGGED},
            "channels_per_group": p.C_per_group,
            "filters_per_group": p.K_per_group,
            "log2_spatial": log2(image),
            "log2_output": log2(made),
            "log2_filter": log2(taps),
            "filter_area": taps,
            "is_1x1_conv": 1 * (taps == 1),
            "is_3x3_conv": 1 * ((p.Y == 3) & (p.X == 3)),
            "is_3d": 1 * ((p.Di > 1) | (p.Z > 1)),
            "is_depthwise": 1 * ((p.G > 1) & (p.C == p.G)),
            "small_group": 1 * ((p.G > 1) & (p.C_per_group < SMALL_GROUP)),
            "is_small_batch_grouped": 1 * ((p.G > 1) & (p.N < SMALL_BATCH)),
            "group_density": p.G / p.C,
            "channels_product_per_group": p.C_per_group * p.K_per_group,
            "channel_ratio": p.C / p.K,
            "batch_group_product": p.N * p.G,
            "aspect_ratio_hw": p.Hi / p.Wi,
            "aspect_ratio_filter": p.Y / p.X,
            "strides": strides,
            "dilated": 1 * (p.dilation_d * p.dilation_h * p.dilation_w > 1),
            "padded_share": 1 - image / ((p.Di + 2 * p.pad_d) * (p.Hi + 2 * p.pad_h) * (p.Wi + 2 * p.pad_w)),
            # How often each input element is read without reuse: the factor by which im2col multiplies traffic.
            "reuse": taps * made / image,
            "reach_share": reach_h * reach_w / ((p.Hi + 2 * p.pad_h) * (p.Wi + 2 * p.pad_w)),
            **{name: getattr(p, name) for name in ("gemm_m", "gemm_n", "gemm_k", "gemm_count")},
            **{f"log2_{name}": log2(maximum(getattr(p, name), 1)) for name in ("gemm_m", "gemm_n", "gemm_k")},
            "gemm_aspect": p.gemm_m / p.gemm_n,
            "gemm_depth": p.gemm_k / maximum(p.gemm_m, p.gemm_n),
            "arithmetic_intensity": work.flops / work.bytes,
            "log2_flops": log2(work.flops),
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }


class GroupedConvForward(GroupedConv):
    name = "grouped_conv_forward"
    doc = "grouped convolution of images or volumes with a filter"

    def product(self, p: Namespace) -> tuple[Expr, Expr, Expr, Expr]:
        """An output pixel is a row, an output channel a column; each group is its own product."""
        return p.N * p.Do * p.Ho * p.Wo, p.K / p.G, p.C / p.G * p.Z * p.Y * p.X, p.G


class GroupedConvBwdData(GroupedConv):
    name = "grouped_conv_bwd_data"
    doc = "the gradient of a grouped convolution's input, from the gradient of its output and the weights"

    def product(self, p: Namespace) -> tuple[Expr, Expr, Expr, Expr]:
        """An input pixel is a row, an input channel a column.

        With a stride of s only every s-th tap reaches a pixel, and which ones depends on its position modulo the stride. So
        the input falls into phases, each a product with its share of pixels and taps.
        """
        rows, depth, count = p.N, p.K / p.G, p.G
        for axis, size, taps in zip(AXES, INPUT, FILTER, strict=True):
            stride = getattr(p, f"stride_{axis}")
            phases = stride / lookup(_GCD, stride, getattr(p, f"dilation_{axis}"))
            rows = rows * ceil_div(getattr(p, size), phases)
            depth = depth * ceil_div(getattr(p, taps), phases)
            count = count * phases
        return rows, p.C / p.G, depth, count


class GroupedConvBwdWeight(GroupedConv):
    name = "grouped_conv_bwd_weight"
    doc = "the gradient of a grouped convolution's weights, from its input and the gradient of its output"

    def product(self, p: Namespace) -> tuple[Expr, Expr, Expr, Expr]:
        """An output channel is a row, a tap of an input channel a column; output pixels of all images are summed over."""
        return p.K / p.G, p.C / p.G * p.Z * p.Y * p.X, p.N * p.Do * p.Ho * p.Wo, p.G


grouped_conv_forward = GroupedConvForward()
grouped_conv_bwd_data = GroupedConvBwdData()
grouped_conv_bwd_weight = GroupedConvBwdWeight()
