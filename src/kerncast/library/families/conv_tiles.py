"""How the convolution kernels for CPUs cut a problem into tiles, for constraints and features of `grouped_conv_cpu`.

What is counted here is what the kernels do: parts of nearly equal size, weights packed into strips, images copied with
a rim of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, ceil_div, constant, floor_div, maximum, minimum, where

# A depthwise kernel copies the source once for each channel of a group.
LARGEST_DEPTHWISE = 8


def is_direct(c: Namespace) -> Expr:
    """Whether tiles read the image, or a copy of it."""
    return c.kernel == "direct"


def is_im2col(c: Namespace) -> Expr:
    """Whether tiles read columns that were copied side by side."""
    return c.kernel == "im2col"


def is_depthwise(c: Namespace) -> Expr:
    """Whether each channel has its own weights only."""
    return c.kernel == "depthwise"


def has_blocks(c: Namespace) -> Expr:
    """Whether pixels and sums are taken in blocks."""
    return c.kernel != "depthwise"


def _parts(extent: Expr, limit: Expr) -> tuple[Expr, Expr]:
    """Number of nearly equal parts of at most `limit`, and the length of the longest."""
    count = maximum(ceil_div(extent, limit), 1)
    return count, ceil_div(extent, count)


@dataclass(frozen=True)
class View:
    """A config on a problem in one direction; subclasses override what differs between directions."""

    p: Namespace
    c: Namespace

    @property
    def last(self) -> Expr:
        """Whether channels come last."""
        return self.p.layout == "nhwc"

    @property
    def lanes(self) -> Expr:
        return self.c.vector_bytes / self.p.element_bytes

    @property
    def taps(self) -> Expr:
        return self.p.Z * self.p.Y * self.p.X

    @property
    def plain(self) -> Expr:
        """Whether it is a plain matrix product: one tap, no stride, no padding."""
        p = self.p
        strides, pads = p.stride_d * p.stride_h * p.stride_w, p.pad_d + p.pad_h + p.pad_w
        return (self.taps == 1) & (strides == 1) & (pads == 0)

    # Channels of one group, in the source and in the result (or in the output).
    @property
    def source(self) -> Expr:
        return self.p.C_per_group

    @property
    def result(self) -> Expr:
        return self.p.K_per_group

    @property
    def phases(self) -> Expr:
        return constant(1)

    @property
    def phase_taps(self) -> Expr:
        """Taps per result pixel, on average."""
        return self.taps / self.phases

    @property
    def made(self) -> tuple[Expr, Expr, Expr]:
        """Depth, height and width of the result pixels of one phase."""
        return self.p.Do, self.p.Ho, self.p.Wo

    @property
    def source_pixels(self) -> Expr:
        return self.p.N * self.p.Di * self.p.Hi * self.p.Wi

    @property
    def row(self) -> Expr:
        """Pixels of a row: all of an image where rows follow each other without a gap and channels come first."""
        depth, height, width = self.made
        return where(self.plain & ~self.last, depth * height * width, width)

    @property
    def pixels(self) -> Expr:
        """Result pixels of one phase."""
        depth, height, width = self.made
        return self.p.N * depth * height * width

    @property
    def multiplications(self) -> Expr:
        return self.phases * self.pixels * self.phase_taps * self.source * self.result * self.p.G

    # What a tile is cut from, what it sums over.
    @property
    def block_pixels(self) -> Expr:
        """Pixels of a block of columns."""
        return _parts(self.pixels, self.c.nc)[1]

    @property
    def span(self) -> Expr:
        """Pixels of a row that a direct kernel takes at once."""
        unit = where(self.last, 1, self.lanes)
        vectors = _parts(ceil_div(self.row, unit), maximum(floor_div(self.c.nc, unit), 1))[1]
        return where(is_direct(self.c), minimum(vectors * unit, self.row), self.row)

    @property
    def row_extent(self) -> Expr:
        """Rows of all tiles side by side."""
        height = self.made[1]
        last = where(is_im2col(self.c), self.block_pixels, self.span)
        return where(self.last, last, where(is_depthwise(self.c), height, self.result))

    @property
    def vector_extent(self) -> Expr:
        """Elements that vectors run along."""
        channels = where(is_depthwise(self.c), self.result * self.p.G, self.result)
        return where(self.last, channels, where(is_im2col(self.c), self.block_pixels, self.span))

    @property
    def sums(self) -> Expr:
        """Products of one result."""
        return self.source * self.phase_taps

    @property
    def reduction(self) -> Expr:
        """What a tile sums over, all passes together."""
        return self.sums

    @property
    def depth(self) -> tuple[Expr, Expr]:
        """Passes over the sums, and steps between two entries of a tile's list."""
        extent = where(is_direct(self.c), self.source, where(is_im2col(self.c), self.sums, self.source))
        return _parts(extent, where(is_depthwise(self.c), LARGEST_DEPTHWISE, self.c.kc))

    @property
    def is_dot(self) -> Expr:
        return constant(0)

    # -- tiles ---------------------------------------------------------------------------------------

    @property
    def tile_rows(self) -> tuple[Expr, Expr]:
        return _parts(self.row_extent, self.c.mr)

    @property
    def vectors(self) -> Expr:
        return where(self.is_dot, self.vector_extent, ceil_div(self.vector_extent, self.lanes))

    @property
    def tile_vectors(self) -> tuple[Expr, Expr]:
        return _parts(self.vectors, self.c.nv)

    @property
    def vector_fill(self) -> Expr:
        return where(
            self.is_dot,
            self.row / (ceil_div(self.row, self.lanes) * self.lanes),
            self.vector_extent / (self.vectors * self.lanes),
        )

    # -- what is moved -------------------------------------------------------------------------------

    @property
    def copied(self) -> Expr:
        """Elements of the source that are copied before they are read, a column counted as an element."""
        columns = self.phases * self.pixels * self.sums * self.p.G
        in_place = self.plain & self.last
        vectors = ~self.last & (ceil_div(self.row, self.lanes) * self.lanes > self.row)
        staged = self.source_pixels * where(is_depthwise(self.c) & self.last, self.result, 1) * self.source * self.p.G
        needs = (
            self.rim | vectors | (~self.last & (self.p.stride_w > 1)) | (is_depthwise(self.c) & self.last & (self.source > 1))
        )
        return where(is_im2col(self.c), where(in_place, 0, columns), where(self.clipped, 0, needs * staged))

    @property
    def rim(self) -> Expr:
        """Whether taps reach beyond the image, so that zeros are copied around it."""
        return self.p.pad_d + self.p.pad_h + self.p.pad_w > 0

    @property
    def clipped(self) -> Expr:
        return self.c.border == "clip"

    @property
    def packed(self) -> Expr:
        """Weights that are copied into strips."""
        return self.taps * self.source * self.result * self.p.G

    @property
    def strip(self) -> Expr:
        """Weights of one strip for one pass: what all tiles of a block read."""
        width = where(self.last, self.tile_vectors[1] * self.lanes, self.tile_rows[1])
        taps = where(is_im2col(self.c), 1, self.phase_taps)
        return self.depth[1] * taps * width

    @property
    def block(self) -> Expr:
        """Source elements, or columns, of one block for one pass: what every strip reads again."""
        pixels = minimum(self.c.nc, self.pixels)
        return where(is_depthwise(self.c), self.row, pixels) * self.depth[1]

    @property
    def panel(self) -> Expr:
        """Weights for one pass: what every block reads again."""
        return self.strip * where(self.last, self.tile_vectors[0], self.tile_rows[0])

    @property
    def blocks(self) -> Expr:
        """Blocks of pixels."""
        return self.phases * ceil_div(self.pixels, where(is_depthwise(self.c), self.row, self.c.nc))

    @property
    def calls(self) -> Expr:
        """Tiles that are computed, in all passes."""
        others = where(is_depthwise(self.c), where(self.last, 1, self.result * self.p.G), self.p.G)
        rest = self.pixels / where(is_im2col(self.c), self.block_pixels, self._spanned)
        return self.phases * self.tile_rows[0] * self.tile_vectors[0] * self.depth[0] * others * rest

    @property
    def _spanned(self) -> Expr:
        """Pixels that the tiles of one strip cover before the next row."""
        return where(is_depthwise(self.c) & ~self.last, self.made[1] * self.row, self.span)

    @property
    def scattered(self) -> Expr:
        """Whether the last vector is partial, so that its results are stored one by one."""
        return 1 * (ceil_div(self.vector_extent, self.lanes) * self.lanes > self.vector_extent)


class BackwardView(View):
    """The gradient of the input: reads the gradient of the output, in phases."""

    @property
    def source(self) -> Expr:
        return self.p.K_per_group

    @property
    def result(self) -> Expr:
        return self.p.C_per_group

    @property
    def phases(self) -> Expr:
        return self.p.stride_d * self.p.stride_h * self.p.stride_w

    @property
    def made(self) -> tuple[Expr, Expr, Expr]:
        p = self.p
        return ceil_div(p.Di, p.stride_d), ceil_div(p.Hi, p.stride_h), ceil_div(p.Wi, p.stride_w)

    @property
    def source_pixels(self) -> Expr:
        return self.p.N * self.p.Do * self.p.Ho * self.p.Wo

    @property
    def rim(self) -> Expr:
        return ~self.plain

    @property
    def scattered(self) -> Expr:
        apart = where(self.last, is_im2col(self.c) & (self.phases > 1), self.p.stride_w > 1)
        return maximum(super().scattered, 1 * apart)


class WeightView(View):
    """The gradient of the weights: a tile sums over pixels of the output."""

    @property
    def row(self) -> Expr:
        depth, height, width = self.made
        return where(self.plain, depth * height * width, width)

    @property
    def block_columns(self) -> Expr:
        """Columns of a block, in whole vectors except for the last."""
        vectors = _parts(ceil_div(self.sums, self.lanes), maximum(floor_div(self.c.nc, self.lanes), 1))[1]
        return minimum(vectors * self.lanes, self.sums)

    @property
    def is_dot(self) -> Expr:
        return ~self.last & ~is_im2col(self.c)

    @property
    def row_extent(self) -> Expr:
        return where(is_depthwise(self.c) & self.last, self.p.X, self.result)

    @property
    def vector_extent(self) -> Expr:
        columns = self.block_columns
        direct = where(is_depthwise(self.c), where(self.last, self.result * self.p.G, self.p.Y), self.source)
        return where(is_im2col(self.c), columns, direct)

    @property
    def depth(self) -> tuple[Expr, Expr]:
        return _parts(self.pixels, self.c.kc)

    @property
    def reduction(self) -> Expr:
        return self.pixels

    @property
    def rim(self) -> Expr:
        partial = ceil_div(self.source, self.lanes) * self.lanes > self.source
        return super().rim | (self.last & is_direct(self.c) & partial)

    @property
    def clipped(self) -> Expr:
        return constant(0)

    @property
    def packed(self) -> Expr:
        """The gradient of the output, in strips or whole vectors."""
        output = self.pixels * self.result * self.p.G
        partial = ceil_div(self.row, self.lanes) * self.lanes > self.row
        return where(is_im2col(self.c), output, where(self.is_dot & partial, output, 0))

    @property
    def strip(self) -> Expr:
        """Pixels of one pass times the width of a tile of columns."""
        return self.depth[1] * self.tile_vectors[1] * where(self.is_dot, 1, self.lanes)

    @property
    def block(self) -> Expr:
        return self.depth[1] * where(is_im2col(self.c), self.block_columns, self.source)

    @property
    def panel(self) -> Expr:
        """The gradient of the output that one pass reads for every strip."""
        return self.depth[1] * self.result

    @property
    def blocks(self) -> Expr:
        return where(is_im2col(self.c), ceil_div(self.sums, self.c.nc), 1)

    @property
    def calls(self) -> Expr:
        p = self.p
        wide = where(is_im2col(self.c), self.sums / self.vector_extent, self.taps)
        depthwise = where(self.last, self.taps / p.X * self.source, p.G * self.source * self.taps / p.Y)
        others = where(is_depthwise(self.c), depthwise, p.G * wide)
        return self.tile_rows[0] * self.tile_vectors[0] * self.depth[0] * others

    @property
    def scattered(self) -> Expr:
        return maximum(where(self.is_dot, 0, super().scattered), 1 * self.is_dot)
