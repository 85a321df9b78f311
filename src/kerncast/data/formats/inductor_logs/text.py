"""What max-autotune prints while it compiles: blocks between other lines, perhaps of several processes.

    Autotune Choices Stats:
    {"num_choices": 20, "best_kernel": "triton_mm_12", "best_time": 0.012288000445, …}
    AUTOTUNE mm(64x128, 128x256)
    strides: [128, 1], [256, 1]
    dtypes: torch.float16, torch.float16
      triton_mm_12 0.0123 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, …, num_stages=3, num_warps=4
      mm 0.0133 ms 92.4%
    SingleProcess AUTOTUNE benchmarking takes 1.2345 seconds and 0.6789 seconds precompiling for 20 choices

Torch 2.3 and 2.4 print neither strides nor dtypes nor the arguments of a template. The statistics came with 2.8. A time has 4
decimals; with the statistics it follows more exactly from the best time and the percentage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kerncast.core.io.foreign import decode_json
from kerncast.data.formats.inductor_logs.autotune import Autotune, Choice, described, numbers_of
from kerncast.data.skipping import Skips, bad_row
from kerncast.library.families.torch_products import Described

COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
# What launchers put before a line: `[rank0]: `, `[1,0]<stderr>:`, `worker-1  | `.
PREFIX = re.compile(r"(?:\[[^\]\n]{1,60}\](?:<\w{1,10}>)?:? ?|[\w.:/+-]{1,80} {0,20}\| )*")
BEGIN = re.compile(r"AUTOTUNE (?P<op>[\w.]{1,200})\((?P<sizes>[^)]*)\)")
STRIDES, DTYPES, STATS = "strides: ", "dtypes: ", "Autotune Choices Stats:"
TIMED = re.compile(
    r"(?P<name>\S{1,500}) (?P<time>\d{1,12}\.\d{1,12}|inf|nan) ms(?: (?P<share>\d{1,3}\.\d)%| <DIVIDED BY ZERO ERROR>)?"
    r"(?: (?P<about>.*))?"
)
END = re.compile(r"\w{1,40} AUTOTUNE (?:benchmarking )?takes .*?(?:precompiling for (?P<total>\d{1,9}) choices.*)?$")
BRACKETS = re.compile(r"\[[^\]]*\]")
# A log has other lines of any length; those of an autotune are far shorter.
LONGEST_LINE = 100_000
# Half of the last printed digit.
ROUNDING_MS = 0.00005


class Stats(msgspec.Struct, frozen=True):
    """The exact times of the fastest choices."""

    best_kernel: str | None = None
    best_time: float | None = None
    best_triton_kernel: str | None = None
    best_triton_time: float | None = None


@dataclass
class _Stream:
    """Where one process is in its output."""

    open: Autotune | None = None
    before: Stats | None = None
    """Statistics of the autotune that follows."""
    stats: Stats | None = None
    told: dict[str, str] = field(default_factory=dict)


def is_text_log(text: str) -> bool:
    """Whether a text has a block of max-autotune."""
    return any(BEGIN.match(_plain(line)[1]) for line in text.split("\n") if "AUTOTUNE " in line)


def read_text(text: str, skips: Skips) -> Iterator[Autotune]:
    """The autotunes in a log, each when it ends: at its last line, at the next one of its process, or at the end of the log."""
    streams: dict[str, _Stream] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            continue
        prefix, rest = _plain(line.rstrip("\r"))
        stream = streams.setdefault(prefix, _Stream()) if prefix in streams or _begins(rest) else None
        if stream is None:
            continue
        ended = _take(stream, number, rest, skips)
        if ended is not None:
            yield ended
    for stream in streams.values():
        if stream.open is not None:
            yield _closed(stream)


def _plain(line: str) -> tuple[str, str]:
    """What stands before a line, and the line."""
    line = COLOUR.sub("", line)
    prefix = PREFIX.match(line)
    end = prefix.end() if prefix else 0
    return line[:end].rstrip(), line[end:].strip()


def _begins(rest: str) -> bool:
    return rest.startswith(("AUTOTUNE ", STATS))


def _take(stream: _Stream, number: int, rest: str, skips: Skips) -> Autotune | None:
    """Add a line to what its process said; the autotune that it ends, if it ends one."""
    begin = BEGIN.match(rest)
    if begin or rest.startswith(STATS):
        ended = _closed(stream) if stream.open is not None else None
        if begin is None:
            stream.before = Stats()  # its JSON is on the next line
        else:
            stream.open = Autotune(number, begin["op"])
            stream.told, stream.stats, stream.before = {"sizes": begin["sizes"]}, stream.before, None
        return ended
    if rest.startswith("{") and stream.before is not None:
        stream.before = _stats(rest)
        return None
    if stream.open is None:
        return None
    for name in (STRIDES, DTYPES):
        if rest.startswith(name) and not stream.open.choices:
            stream.told[name] = rest.removeprefix(name)
            return None
    end, timed = END.match(rest), TIMED.fullmatch(rest)
    if timed:
        _add(stream, number, timed, skips)
    elif end:
        stream.open.total = int(end["total"]) if end["total"] else None
        return _closed(stream)
    return None


def _stats(text: str) -> Stats | None:
    try:
        return decode_json(text, Stats)
    except msgspec.DecodeError:
        return None


def _add(stream: _Stream, number: int, timed: re.Match[str], skips: Skips) -> None:
    assert stream.open is not None
    printed = float(timed["time"])
    if printed == math.inf:
        ms: float | None = None
    elif not printed > 0:
        skips.one(bad_row(number, "a time must be a positive number of milliseconds", timed["time"]), timed[0])
        return
    else:
        ms = _exact(stream.stats, timed["name"], printed, timed["share"])
    stream.open.choices.append(Choice(number, described(timed["name"], timed["about"] or ""), ms))


def _exact(stats: Stats | None, name: str, printed: float, share: str | None) -> float:
    """The time of a choice: from the statistics if they name it, else from the best time and its share, else as printed."""
    if stats is None:
        return printed
    low, high = printed - ROUNDING_MS, printed + ROUNDING_MS
    for own, time in ((stats.best_kernel, stats.best_time), (stats.best_triton_kernel, stats.best_triton_time)):
        if own == name and time is not None and low <= time <= high:
            return time
    best, part = stats.best_time, float(share or 0) / 100
    if best is None or not math.isfinite(best) or best <= 0 or part <= 0:
        return printed
    # The share has one decimal: it narrows what was printed, and never leaves it.
    smallest, largest = max(low, best / (part + 0.0005)), min(high, best / max(part - 0.0005, 1e-9))
    return (smallest + largest) / 2 if smallest <= largest else printed


def _closed(stream: _Stream) -> Autotune:
    """The autotune that is open, with its operands."""
    found = stream.open
    assert found is not None
    stream.open = None
    sizes = [part.strip() for part in stream.told["sizes"].split(",")]
    strides = BRACKETS.findall(stream.told.get(STRIDES, ""))
    dtypes = [part.strip() for part in stream.told.get(DTYPES, "").split(",") if part.strip()]
    found.inputs = [
        _tensor(size, strides[place] if place < len(strides) else None, dtypes[place] if place < len(dtypes) else None)
        for place, size in enumerate(sizes)
    ]
    return found


def _tensor(size: str, stride: str | None, dtype: str | None) -> Described:
    found: dict[str, Any] = {"size": numbers_of(size.replace("x", ","))}
    if stride is not None:
        found["stride"] = numbers_of(stride)
    if dtype is not None:
        found["dtype"] = dtype
    return found
