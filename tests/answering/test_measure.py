"""Choosing by the clock: what is timed, what is left out, and when it ends."""

import time

import pytest

from kerncast.answering.measure import contenders, measure_top
from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.errors import InvalidValue
from kerncast.library.families.gemm_cpu import gemm_cpu
from kerncast.measuring.backends.contract import Backend, Prepared, Unsupported

PROBLEM = Problem(gemm_cpu, M=64, N=64, K=64, dtype="fp32", layout="rrr")
BASE = {
    "kernel": "outer", "vector_bytes": 16, "nv": 2, "k_unroll": 1, "prefetch": 0, "pack_a": True, "pack_b": True,
    "mc": 24, "kc": 64, "nc": 64, "loop_order": "nkm", "tile_order": "nm", "split": "none",
}  # fmt: skip
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


def config(mr):
    return Config(gemm_cpu, {**BASE, "mr": mr})


class Scripted(Backend):
    """A device of scripted times, by `mr`: a number of nanoseconds, a wrong result, or an exception."""

    name = "scripted"
    families = ("gemm/cpu",)

    def __init__(self, behaviour):
        super().__init__()
        self.behaviour, self.open, self.most_open, self.prepared = behaviour, 0, 0, []

    def device(self):
        return Device("box", "a box", "cpu")

    def software(self, family):
        return {}

    def prepare(self, problem, chosen):
        backend, does = self, self.behaviour[chosen.mr]
        self.prepared.append(chosen.mr)
        if isinstance(does, Exception):
            raise does
        self.open += 1
        self.most_open = max(self.most_open, self.open)

        class Kernel(Prepared):
            def run(self, launches):
                return round(does * launches)

            def check(self):
                return 0.5 if does < 0 else 0.0

            def close(self):
                backend.open -= 1

        return Kernel()


def test_the_ranking_is_by_measured_time_and_every_kernel_is_closed():
    """Fastest first, whatever the order of the question; those near the top have several samples, the others one."""
    backend = Scripted({mr: 1e6 * (1 + abs(mr - 5)) for mr in ROWS})
    found = measure_top(backend, PROBLEM, [config(mr) for mr in (*ROWS, *ROWS)], 5.0)
    assert [timed.config.mr for timed in found[:3]] == [5, 4, 6]
    assert [timed.time_ns for timed in found] == sorted(1e6 * (1 + abs(mr - 5)) for mr in ROWS)
    assert backend.prepared == list(ROWS), "each config once"
    assert backend.open == 0 < backend.most_open


def test_close_ones_race_in_several_passes():
    """Those near the best get enough samples to tell them apart, those far behind it few."""
    backend = Scripted(dict.fromkeys(ROWS, 1e6) | {2: 1.05e6, 3: 0.98e6, 8: 2e6})
    found = measure_top(backend, PROBLEM, [config(mr) for mr in (2, 3, 8)], 5.0)
    assert [(timed.config.mr, timed.samples) for timed in found] == [(3, 5), (2, 5), (8, 2)]


def test_what_fails_or_computes_something_else_is_never_chosen():
    """A wrong result, a refusal and a plain exception each cost one config, and nothing is left open."""
    backend = Scripted({1: -1.0, 2: Unsupported("no such instruction"), 3: RuntimeError("spoiled"), 4: 9e5})
    assert [timed.config.mr for timed in measure_top(backend, PROBLEM, [config(mr) for mr in (1, 2, 3, 4)], 5.0)] == [4]
    assert backend.open == 0
    with pytest.raises(InvalidValue, match=r"none of 2 configs runs Problem\(gemm, M=64.*the largest error is 0.5"):
        measure_top(backend, PROBLEM, [config(1), config(2)], 5.0)
    with pytest.raises(InvalidValue, match="must be positive, got 0"):
        measure_top(backend, PROBLEM, [config(4)], 0)


def test_the_budget_ends_the_visit_but_not_before_one_works(monkeypatch):
    """With the time spent by each kernel, later configs are not visited; making the data is not on the clock."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    backend = Scripted({1: RuntimeError("spoiled"), 2: 3e6, 3: 2e6, 4: 1e6, 5: 1e5})
    plain = backend.prepare

    def prepare(problem, chosen):
        clock[0] += 0.3 if backend.prepared else 100.0
        return plain(problem, chosen)

    backend.prepare = prepare
    found = measure_top(backend, PROBLEM, [config(mr) for mr in (1, 2, 3, 4, 5)], 0.8)
    assert backend.prepared == [1, 2, 3, 4], "0.6 of the budget is for the first visit"
    assert found[0].config.mr == 4


def test_contenders_are_those_whose_interval_reaches_the_best_one():
    """The first always, then every one that may be quicker than the first one's upper bound, up to a limit."""
    assert contenders([8.0, 9.0, 13.0, 11.0], [12.0, 14.0, 15.0, 16.0]) == [0, 1, 3]
    assert contenders([8.0] * 9, [12.0] * 9, most=3) == [0, 1, 2]
    assert contenders([], []) == []
