"""Rates that a profile lacks come from the fastest rows to learn from, and from no others."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from kerncast.core import rates
from kerncast.core.device import Device
from kerncast.core.io.foreign import decode_toml
from kerncast.data.schema import conform
from kerncast.errors import InvalidValue
from kerncast.learning.table import build_table, refuse_alike_devices
from kerncast.library import devices
from kerncast.library.declared.declaration import declared_family
from kerncast.library.declared.family_file import declaration_in

BARE = Device("bare", "a device of which nothing is known", "cpu")
OP = """
[op]
name = "own_product"
work = { flops = "2 * m * n", bytes = "4 * (m + n)" }
[op.problem]
m = { from = 1, to = 65536 }
n = { from = 1, to = 65536 }
%s
[family]
name = "tiled"
[family.config]
tile = [8, 16]
"""


def family(extra=""):
    return declared_family(declaration_in(decode_toml((OP % extra).encode())))


def table(own, machines, dtypes=(None,), speed=1.0):
    """Problems of growing size; the faster config runs at 2 FLOP per ns."""
    rows = [
        {"problem.m": m, "problem.n": 64, "config.tile": tile, "device": device.name, "status": "ok",
         "time_ns": 2.0 * m * 64 / (2.0 if tile == 16 else 1.0) / speed} | ({} if dtype is None else {"problem.dtype": dtype})
        for device in machines for dtype in dtypes for m in range(64, 64 + 40) for tile in (8, 16)
    ]  # fmt: skip
    return build_table(own, conform(own, pl.DataFrame(rows)), {device.name: device for device in machines}, "made up")


def test_a_device_without_rates_gets_those_of_its_fastest_rows():
    """The declared work counts whatever the profile lacks: the target is relative, and limits stay unknown."""
    found = table(family(), [BARE])
    assert found.devices[0].estimated == pytest.approx({"fp32": 2e-3, "memory_bandwidth_gb_s": 0.1231}, rel=0.02)
    assert found.rows.expected_ns is not None
    assert found.rows.limit_ns is None
    assert rates.unknown(found.family, BARE) == ("memory_bandwidth_gb_s", "fp32")


def test_an_op_without_a_dtype_has_one_implied_until_its_rows_are_faster():
    """On a GPU the rate of fp32 counts; rows beyond it show that it is another dtype, and their rate counts instead."""
    a100 = devices.get("a100")
    assert table(family(), [a100]).devices[0] == a100
    faster = table(family(), [a100], speed=50_000.0)
    assert faster.devices[0].estimated == pytest.approx({"fp32": 100.0}, rel=0.02)
    assert faster.devices[0].peak_tflops == a100.peak_tflops


def test_rows_that_are_held_out_do_not_move_the_rates():
    """Times of the judged rows may be anything; a dtype or a device that only they have gets the usual rate of the others."""
    whole = table(family('dtype = ["fp32", "fp16"]'), [BARE, replace(BARE, name="other")], ("fp32", "fp16"))
    held = (whole.rows.frame["problem.dtype"] == "fp16").to_numpy() & (whole.device == 0) | (whole.device == 1)
    odd = replace(whole, time_ns=np.where(held, whole.time_ns / 1000.0, whole.time_ns))
    for one, other in zip(whole.divided(~held, held), odd.divided(~held, held), strict=True):
        assert [device.estimated for device in one.devices] == [device.estimated for device in other.devices]
        assert (one.rows.expected_ns == other.rows.expected_ns).all()
        assert one.devices[0].estimated["fp16"] == one.devices[0].estimated["fp32"] == one.devices[1].estimated["fp32"]


def test_what_is_missing_is_said_with_what_it_costs():
    """No work, no dtype, no rates: a sentence each; nothing is said of an op whose device is known."""
    assert rates.notes(family('dtype = ["fp32"]'), {devices.get("a100"): None}, own=True) == []
    dtype, lacking = rates.notes(family(), {BARE: None}, own=True)
    assert dtype.startswith("own_product has no dtype, so its arithmetic counts as fp32")
    assert "bare has no memory_bandwidth_gb_s and peak rate of fp32: times of own_product are learned relative to" in lacking
    idle = declared_family(declaration_in(decode_toml((OP % "").replace("work =", "derived =").encode())))
    assert "declares no work" in rates.notes(idle, {BARE: None}, own=True)[0]


def test_devices_that_nothing_tells_apart_are_not_learned_from_together():
    """Of an op without work, on devices without numbers, one's time would be that of all; a number of each is enough."""
    own = declared_family(
        declaration_in(decode_toml((OP % "").replace('work = { flops = "2 * m * n", bytes = "4 * (m + n)" }', "").encode()))
    )
    bare = [BARE, replace(BARE, name="other")]
    with pytest.raises(
        InvalidValue, match=r"could not tell bare, other apart: .* give each its memory_bandwidth_gb_s or num_cus"
    ):
        refuse_alike_devices(table(own, bare))
    for machines in (
        bare[:1],
        [replace(device, numbers={"num_cus": cores}) for device, cores in zip(bare, (4, 8), strict=True)],
    ):
        refuse_alike_devices(table(own, machines))
    refuse_alike_devices(table(family(), bare))  # the work of the op and the rates of each tell them apart
