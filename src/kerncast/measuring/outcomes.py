"""How a vector ended, as the result that a worker sends."""

from __future__ import annotations

import errno
import math
import statistics

from kerncast.errors import KerncastError
from kerncast.measuring.backends.contract import Failed, WrongResult
from kerncast.measuring.backends.environment import fault_of
from kerncast.measuring.messages import Result
from kerncast.measuring.timing import BlockTimer, Timed


class EnvironmentFault(Exception):
    """The machine around the kernels failed; the message says how."""


def refuse_environment(error: Exception) -> None:
    """Raise an `EnvironmentFault` if that is why an exception was raised."""
    fault = fault_of(error)
    if fault is not None:
        raise EnvironmentFault(fault) from error


def words_of(error: BaseException) -> str:
    """The message of an exception, after its type unless it can be read alone (that of a KeyError is just a key)."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if text and isinstance(error, Failed | KerncastError):
        return text[:500]
    return f"{kind}: {text}"[:500] if text else kind


def failure_of(key: str, error: Exception, started: str) -> Result:
    """The row of a vector that raised an exception."""
    no_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    status = error.status if isinstance(error, Failed) else "out_of_memory" if no_memory else "launch_error"
    wrong = error.max_abs_err if isinstance(error, WrongResult) and math.isfinite(error.max_abs_err) else None
    return Result(key, status, max_abs_err=wrong, started_at=started, error=words_of(error))


def result_of(key: str, timed: Timed, timer: BlockTimer, started: str) -> Result:
    """The row of a timed vector: median and deviation of the accepted samples, mean and spread of all of them."""
    everything = timed.quiet + timed.disturbed
    accepted = timed.accepted(timer.policy.close)
    middle = statistics.median(accepted)
    return Result(
        key=key,
        status="ok",
        time_ns=middle,
        time_ns_min=min(everything),
        time_ns_mean=statistics.fmean(everything),
        time_ns_std=statistics.stdev(everything) if len(everything) > 1 else None,
        time_ns_mad=statistics.median(abs(sample - middle) for sample in accepted),
        samples=len(everything),
        inner_loops=timed.loops,
        warmup_ns=float(timed.warmup_ns),
        compile_ns=timed.prepared_ns,
        max_abs_err=timed.max_abs_err,
        label=timed.label,
        sentinel_ns=statistics.median(timed.sentinels) if any(timed.sentinels) else None,
        started_at=started,
        error=None if timer.confirmed(timed) else _crowded_words(timed),
        disturbed_samples=len(timed.disturbed),
        unsure=not timer.confirmed(timed) and not timer.given_up(timed),
    )


def _crowded_words(timed: Timed) -> str | None:
    """The note in a row whose time has too few quiet samples because other processes wanted the CPUs."""
    if not timed.pressures:
        return None
    share = statistics.fmean(timed.pressures)
    return f"timed under CPU pressure: others wanted the CPUs of its {timed.threads} threads for {share:.0%} of the time"
