"""Named problem sets for grouped convolution, the same for all three directions: layers as rules rather than lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

AXES = (
    *("N", "C", "K", "G", "Di", "Hi", "Wi", "Z", "Y", "X"),
    *(f"{name}_{axis}" for name in ("stride", "pad", "dilation") for axis in "dhw"),
)
Shape = tuple[int, ...]
Triple = tuple[int, int, int]

FEW, MANY = (1, 8, 32), (1, 4, 16, 64)
# Images of an ImageNet classifier after each halving, and the channels that ResNet has there.
STAGES = ((56, 64), (28, 128), (14, 256), (7, 512))


@dataclass(frozen=True)
class Layer:
    """A convolution without its batch; sizes are (depth, height, width)."""

    channels: int
    filters: int
    size: Triple
    taps: Triple
    groups: int = 1
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)

    def images(self, count: int) -> Shape:
        """The problem of a batch, in the order of `AXES`."""
        head = (count, self.channels, self.filters, self.groups)
        return (*head, *self.size, *self.taps, *self.stride, *self.pad, *self.dilation)

    @property
    def flops(self) -> int:
        """The arithmetic of one image."""
        made = 1
        for size, taps, stride, dilation, pad in zip(self.size, self.taps, self.stride, self.dilation, self.pad, strict=True):
            made *= (size + 2 * pad - (taps - 1) * dilation - 1) // stride + 1
        depth = self.taps[0] * self.taps[1] * self.taps[2] * self.channels // self.groups
        return 2 * made * self.filters * depth


def plane(channels: int, filters: int, size: int, taps: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> Layer:
    """A square image and filter, padded so that a stride of 1 keeps the size (odd filters)."""
    pad = (taps - 1) // 2 * dilation
    return Layer(
        channels, filters, (1, size, size), (1, taps, taps), groups, (1, stride, stride), (1, dilation, dilation), (0, pad, pad)
    )


def volume(channels: int, filters: int, depth: int, size: int, taps: Triple, stride: Triple = (1, 1, 1)) -> Layer:
    """A stack of square images, padded in all three directions."""
    pad = ((taps[0] - 1) // 2, (taps[1] - 1) // 2, (taps[2] - 1) // 2)
    return Layer(channels, filters, (depth, size, size), taps, 1, stride, (1, 1, 1), pad)


def _batches(layers: Iterable[Layer], counts: Iterable[int]) -> Iterable[Shape]:
    return (layer.images(count) for layer, count in itertools.product(list(dict.fromkeys(layers)), list(counts)))


def _resnet_layers() -> Iterator[Layer]:
    """ResNet-18 and -34 (basic blocks), ResNet-50 (bottlenecks) and VGG-16, as published."""
    yield plane(3, 64, 224, 7, stride=2)
    for index, (size, width) in enumerate(STAGES):
        yield plane(width, width, size, 3)
        # A bottleneck: down to the width, 3×3, up to four times the width.
        yield from (plane(4 * width, width, size, 1), plane(width, 4 * width, size, 1))
        if index:
            # The first block of a stage halves the image; its shortcut does the same with 1×1.
            yield from (plane(width // 2, width, 2 * size, 3, 2), plane(width // 2, width, 2 * size, 1, 2))
            yield from (plane(2 * width, width, 2 * size, 1), plane(width, width, 2 * size, 3, 2))
            yield plane(2 * width, 4 * width, 2 * size, 1, 2)
    yield plane(64, 64, 56, 1)
    vgg = ((224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (28, 256, 512))
    yield from (plane(channels, filters, size, 3) for size, channels, filters in (*vgg, (28, 512, 512), (14, 512, 512)))


def _inverted_residuals(blocks: Iterable[tuple[int, int, int, int, int]]) -> Iterator[Layer]:
    """The depthwise layers of a network from its table of (expansion, channels, repeats, stride, filter)."""
    channels, size = 32, 112
    for expansion, filters, repeats, stride, taps in blocks:
        for step in range(repeats):
            wide = channels * expansion
            yield plane(wide, wide, size, taps, stride if step == 0 else 1, groups=wide)
            channels, size = filters, size // (stride if step == 0 else 1)


MOBILENET_V2 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
                (6, 320, 1, 1, 3))  # fmt: skip
EFFICIENTNET_B0 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
                   (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip


def _depthwise_layers() -> Iterator[Layer]:
    yield from _inverted_residuals(MOBILENET_V2)
    yield from _inverted_residuals(EFFICIENTNET_B0)
    # MobileNet (the first), and ConvNeXt-T's 7×7.
    halving = ((112, 64, 2), (56, 128, 1), (56, 128, 2), (28, 256, 2), (14, 512, 1), (14, 512, 2), (7, 1024, 1))
    yield from (plane(channels, channels, size, 3, stride, groups=channels) for size, channels, stride in halving)
    sizes = ((56, 96), (28, 192), (14, 384), (7, 768))
    yield from (plane(channels, channels, size, 7, groups=channels) for size, channels in sizes)
    # Channels and sizes apart: few on large images, many on small ones.
    for channels, size in itertools.product((64, 128, 256, 512), (16, 28, 56, 112)):
        yield plane(channels, channels, size, 3, groups=channels)
    # Several outputs for every input channel.
    yield from (plane(channels, 2 * channels, size, 3, groups=channels) for size, channels in STAGES)


def _grouped_layers() -> Iterator[Layer]:
    for (size, width), groups, stride in itertools.product(STAGES, (2, 4, 8), (1, 2)):
        yield plane(width, width, size, 3, stride, groups=groups)
    for (size, width), groups in itertools.product(STAGES, (2, 4, 8)):
        yield plane(width, 2 * width, size, 1, groups=groups)
    # ResNeXt-50 (32 groups of 4 channels and up) and ResNeXt-101 (of 8).
    for (size, width), factor in itertools.product(STAGES, (2, 4)):
        yield plane(factor * width, factor * width, size, 3, groups=32)
    yield from (plane(2 * width, 2 * width, 2 * size, 3, 2, groups=32) for size, width in STAGES[1:])
    # AlexNet's second, fourth and fifth layers, which two GPUs shared.
    yield from (plane(96, 256, 27, 5, groups=2), plane(384, 384, 13, 3, groups=2), plane(384, 256, 13, 3, groups=2))


def _dilated_layers() -> Iterator[Layer]:
    for (size, width), dilation in itertools.product(STAGES, (2, 4, 6)):
        yield plane(width, width, size, 3, dilation=dilation)
    for dilation in (6, 12, 18, 24):  # atrous pyramid pooling, at an eighth and a sixteenth of 513 pixels
        yield from (plane(2048, 256, 33, 3, dilation=dilation), plane(320, 256, 65, 3, dilation=dilation))
    yield from (plane(channels, channels, 28, 3, dilation=2, groups=channels) for channels in (64, 256))
    yield from (plane(64, 64, 28, 5, dilation=2), plane(32, 64, 56, 3, 2, 2))


def _strided_layers() -> Iterator[Layer]:
    for size, width in STAGES:
        yield from (plane(width, 2 * width, size, taps, 2) for taps in (1, 2, 3, 5))
    # Stems and patches: ResNet, Inception, ConvNeXt, Swin and vision transformers.
    yield from (plane(3, 64, 224, 7, 2), plane(3, 32, 299, 3, 2), plane(3, 96, 224, 4, 4), plane(3, 768, 224, 16, 16))
    yield from (plane(3, 1024, 224, 14, 14), plane(16, 32, 112, 3, 4), plane(64, 64, 57, 3, 3))
    for stride in ((1, 2, 1), (1, 1, 2)):
        yield replace(plane(64, 64, 56, 3), stride=stride)


def _volume_layers() -> Iterator[Layer]:
    # C3D and R3D-18 over 16 frames, (2+1)D factors, a small 3-D U-Net.
    yield from (volume(3, 64, 16, 112, (3, 3, 3)), volume(3, 64, 16, 112, (3, 7, 7), (1, 2, 2)))
    for depth, (size, width) in zip((16, 8, 4, 2), STAGES, strict=True):
        yield from (volume(width, width, depth, size, taps) for taps in ((3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1)))
        yield volume(width, 2 * width, depth, size, (3, 3, 3), (2, 2, 2))
    yield from (volume(32, 32, size, size, (3, 3, 3)) for size in (8, 16, 32))
    yield from (volume(channels, 2 * channels, 16, 16, (3, 3, 3)) for channels in (16, 64))


def _asymmetric_layers() -> Iterator[Layer]:
    for (size, width), ratio, taps in itertools.product(STAGES, (4, 8, 16), (1, 3)):
        yield from (plane(width // ratio, width, size, taps), plane(width, width // ratio, size, taps))
    # First layers and heads: colours in, classes or one map out.
    yield from (plane(channels, 64, 112, 3) for channels in (1, 3, 4))
    yield from (plane(256, filters, 56, 1) for filters in (1, 19, 21))


def _edge_layers() -> Iterator[Layer]:
    for size, taps in itertools.product((1, 2, 3, 5, 13, 17, 31), (1, 3)):
        yield plane(64, 64, size, taps)
    for channels, filters in ((1, 1), (3, 5), (7, 13), (17, 31), (61, 127), (251, 64)):
        yield from (plane(channels, filters, 19, 3), plane(channels, filters, 28, 1))
    for bar in ((1, 1, 3), (1, 3, 1), (1, 1, 7), (1, 7, 1)):
        yield Layer(64, 64, (1, 17, 17), bar, pad=(0, bar[1] // 2, bar[2] // 2))
    # Images that are not square, even filters, no padding, a filter as large as the image, one that pads its image away.
    yield from (replace(plane(32, 32, 28, 3), size=size) for size in ((1, 7, 112), (1, 112, 7), (1, 1, 64), (1, 64, 1)))
    yield from (Layer(32, 48, (1, size, size), (1, taps, taps)) for size, taps in ((8, 2), (9, 4), (14, 3), (7, 7), (11, 11)))
    yield from (plane(16, 16, 2, 7), plane(16, 16, 1, 5), plane(8, 8, 15, 3, 2), plane(6, 9, 15, 3, groups=3))


def _powers_layers() -> Iterator[Layer]:
    pairs = ((64, 64), (64, 256), (256, 64), (256, 256), (512, 512), (1024, 1024))
    for size, (channels, filters), taps in itertools.product((8, 16, 32), pairs, (1, 3)):
        yield plane(channels, filters, size, taps)
    for size, width, taps, groups in itertools.product((16, 32), (64, 256), (1, 3), (2, 4, 8)):
        yield plane(width, width, size, taps, groups=groups)


def resnet() -> Iterable[Shape]:
    """Layers of ResNet-18, -34, -50 and VGG-16, batches of 1 to 64."""
    return _batches(_resnet_layers(), MANY)


def depthwise() -> Iterable[Shape]:
    """A filter per channel: MobileNet, MobileNetV2, EfficientNet-B0, ConvNeXt, and layers with two outputs per channel."""
    return _batches(_depthwise_layers(), MANY)


def grouped() -> Iterable[Shape]:
    """2, 4, 8 and 32 groups: ResNet's layers cut in parts, ResNeXt, AlexNet."""
    return _batches(_grouped_layers(), FEW)


def dilated() -> Iterable[Shape]:
    """Filters with holes: dilated ResNets and the rates of atrous pyramid pooling."""
    return _batches(_dilated_layers(), FEW)


def strided() -> Iterable[Shape]:
    """Strides of 2 and more: downsampling, stems, patches, one direction alone."""
    return _batches(_strided_layers(), FEW)


def powers() -> Iterable[Shape]:
    """Powers of two throughout: images of 8 to 32 pixels, channels of 64 to 1,024, with and without groups."""
    return _batches(_powers_layers(), FEW)


def volumes() -> Iterable[Shape]:
    """Three dimensions: video networks, factors of 3-D filters, cubes."""
    return _batches(_volume_layers(), (1, 4, 16))


def asymmetric() -> Iterable[Shape]:
    """Four times more input channels than output channels and beyond, or the other way round."""
    return _batches(_asymmetric_layers(), FEW)


def edge() -> Iterable[Shape]:
    """Images of one pixel, odd sizes and channels, filters that are not square, paddings larger than the image."""
    return _batches(_edge_layers(), (1, 2, 5, 32))


# The layers that `wide` makes of a pair of channels: (filter, stride, dilation, groups; 0: as many as channels).
KINDS = ((1, 1, 1, 1), (3, 1, 1, 1), (5, 1, 1, 1), (3, 2, 1, 1), (1, 2, 1, 1), (3, 1, 2, 1), (3, 1, 1, 2), (3, 1, 1, 4),
         (3, 1, 1, 8), (1, 1, 1, 4), (3, 1, 1, 0), (5, 1, 1, 0), (3, 2, 1, 0))  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32)
# A second or so of one CPU core; batches are halved until a problem costs less.
WIDE_FLOPS = 1e9


def _wide_layers() -> Iterator[Layer]:
    for size, width in ((112, 32), *STAGES):
        pairs = ((width, width), (width // 2, width), (width, width // 4), (width // 4, width // 4), (width // 8, width // 2))
        for (channels, filters), (taps, stride, dilation, groups) in itertools.product(pairs, KINDS):
            if groups == 0:
                yield plane(channels, channels, size, taps, stride, groups=channels)
            elif channels % groups == filters % groups == 0:
                yield plane(channels, filters, size, taps, stride, dilation, groups)
    yield from (plane(3, 16, 112, 7, 2), plane(3, 32, 112, 3), plane(3, 64, 56, 4, 4), plane(512, 21, 14, 1))
    for depth, size, width in ((4, 7, 64), (8, 14, 32), (16, 28, 8), (4, 28, 16)):
        yield from (volume(width, width, depth, size, taps) for taps in ((3, 3, 3), (1, 3, 3), (3, 1, 1)))
        yield volume(width, 2 * width, depth, size, (3, 3, 3), (2, 2, 2))
    yield from itertools.islice(_edge_layers(), 0, None, 2)


def wide() -> Iterable[Shape]:
    """About 350 layers of all kinds, each with one batch of 1 to 32 that keeps it near a GFLOP or below."""
    for index, layer in enumerate(dict.fromkeys(_wide_layers())):
        count = BATCHES[index % len(BATCHES)]
        while count > 1 and count * layer.flops > WIDE_FLOPS:
            count //= 2
        yield layer.images(count)


# The layers of `validation`: sizes of images with the channels that are usual there; filter, stride and groups (0: depthwise).
VALIDATED = 300
VALIDATED_SIZES = ((7, (128, 320, 640, 1024)), (14, (96, 192, 384, 768)), (28, (64, 160, 320, 512)), (32, (48, 96, 192, 384)),
                   (56, (32, 80, 160, 256)), (112, (16, 40, 96, 128)))  # fmt: skip
VALIDATED_KINDS = ((1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 1, 1), (1, 2, 1), (3, 1, 2), (3, 1, 4), (1, 1, 8), (3, 1, 0), (3, 2, 0))
VALIDATED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def _validation_layers() -> Iterator[Layer]:
    for (size, widths), (taps, stride, groups) in itertools.product(VALIDATED_SIZES, VALIDATED_KINDS):
        for channels, filters in itertools.product(widths, widths):
            if groups:
                yield plane(channels, filters, size, taps, stride, groups=groups)
            elif channels == filters:
                yield plane(channels, channels, size, taps, stride, groups=channels)
    for depth, size, width in itertools.product((4, 8), (7, 14, 28), (32, 96)):
        yield from (volume(width, width, depth, size, taps) for taps in ((3, 3, 3), (1, 3, 3), (3, 1, 1)))


def validation() -> Iterable[Shape]:
    """300 layers that no other set here has: images of 7 to 112 pixels, volumes, groups, depthwise, strides, batches to 128."""
    others = {shape for rule in TRAINING for shape in rule()}
    layers = list(dict.fromkeys(_validation_layers()))
    made = [layer.images(VALIDATED_BATCHES[place % len(VALIDATED_BATCHES)]) for place, layer in enumerate(layers)]
    left = [shape for shape in made if shape not in others]
    # Evenly spaced, so that every kind of layer keeps its share.
    return (left[place * len(left) // VALIDATED] for place in range(VALIDATED))


TRAINING = (resnet, depthwise, grouped, dilated, strided, powers, volumes, asymmetric, edge, wide)
SETS: dict[str, Callable[[], Iterable[Shape]]] = {rule.__name__: rule for rule in (*TRAINING, validation)}
NAMED_SETS = {f"grouped_conv_{direction}": (AXES, SETS) for direction in ("forward", "bwd_data", "bwd_weight")}
