"""What rocminfo, nvidia-smi and lscpu say: read, bounded, kept in the dataset, and compared with the device's profile."""

import json
import os

import msgspec
import pytest

from kerncast.core.device import Device
from kerncast.core.progress import Progress
from kerncast.data import Dataset
from kerncast.data.manifest import contradictions, latest
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring import hardware as asking
from kerncast.measuring.collection import Request
from kerncast.measuring.hardware import MOST_CHARACTERS, capture, read_lscpu, read_nvidia_smi, read_rocminfo
from kerncast.measuring.run import collect
from kerncast.testing.backends import QUICK
from kerncast.testing.models import synthetic_rows

TRITON = family_named("gemm/triton")
VECTORS = synthetic_rows(problems=1).select("^problem\\..*$", "^config\\..*$").head(3)

NEW_LSCPU = """Architecture:            x86_64
CPU(s):                  64
Model name:              AMD EPYC 9354 32-Core Processor
CPU max MHz:             3799.0720
L1d cache:               1 MiB (32 instances)
L2 cache:                32 MiB (32 instances)
L3 cache:                256 MiB (8 instances)
"""
OLD_LSCPU = (
    "CPU(s): 4\nModel name: Intel(R) Core(TM) i5\nL1d cache: 32K\nL2 cache: 256K\nL3 cache: 6144K\nCPU max MHz: 3600.0000\n"
)
GPU = """*******
Agent {number}
*******
  Name:                    {name}
  Uuid:                    GPU-0123456789abcdef
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
  Cache Info:
    L1:                      32(0x20) KB
    L2:                      4096(0x1000) KB
    L3:                      262144(0x40000) KB
  Chip ID:                 29857(0x74a1)
  Max Clock Freq. (MHz):   2100
  Compute Unit:            {cus}
  SIMDs per CU:            4
  Shader Engines:          32
  Wavefront Size:          64(0x40)
  Workgroup Max Size:      1024(0x400)
  Max Waves Per CU:        32(0x20)
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    201310208(0xbffc000) KB
    Pool 2
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
      Size:                    1024(0x400) KB
    Pool 3
      Segment:                 GROUP
      Size:                    64(0x40) KB
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
      Workgroup Max Size:      2048(0x800)
"""
HOST = "Agent 1\n  Name: AMD EPYC 9354\n  Uuid: CPU-XX\n  Device Type: CPU\n  Compute Unit: 64\n  Max Clock Freq. (MHz): 3250\n"
MI300X = {
    "num_cus": 304, "simds_per_cu": 4, "shader_engines": 32, "max_clock_mhz": 2100, "max_waves_per_cu": 32,
    "wavefront_size": 64, "max_work_group_size": 1024, "l1_cache_kb": 32, "l2_cache_kb": 4096, "l3_cache_kb": 262144,
    "lds_capacity_bytes": 65536,
}  # fmt: skip
A100 = "NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 1410\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Programs of these names, and no others, are on PATH; each prints a text and ends with a code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, text="", then="exit 0"):
        (folder / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / name).write_text(
            f"#!/bin/sh\necho \"$@\" >> '{folder}/{name}.asked'\n/bin/cat '{folder}/{name}.txt'\n{then}\n"
        )
        (folder / name).chmod(0o755)

    make.folder = folder
    return make


def rocminfo(*gpus):
    return HOST + "".join(GPU.format(number=number + 2, name=name, cus=cus) for number, (name, cus) in enumerate(gpus))


def test_numbers_are_read_under_the_names_of_a_profile():
    """Both forms of lscpu, with caches of one core and the last level in total; each GPU of the other two."""
    (cpu,) = read_lscpu(NEW_LSCPU)
    assert (cpu.kind, cpu.name) == ("cpu", "AMD EPYC 9354 32-Core Processor")
    assert cpu.numbers == {
        "num_cus": 64, "max_clock_mhz": 3799.072, "l1_cache_kb": 32, "l2_cache_kb": 1024, "l3_cache_kb": 262144,
    }  # fmt: skip
    assert read_lscpu(OLD_LSCPU)[0].numbers == {
        "num_cus": 4, "max_clock_mhz": 3600, "l1_cache_kb": 32, "l2_cache_kb": 256, "l3_cache_kb": 6144,
    }  # fmt: skip
    first, second = read_rocminfo(rocminfo(("gfx942", 304), ("gfx942", 38)))
    assert first.numbers == {**MI300X, "memory_capacity_gb": pytest.approx(201310208 * 1024 / 1e9)}
    assert (first.name, first.facts, second.numbers["num_cus"]) == ("gfx942", {"marketing_name": "AMD Instinct MI300X"}, 38)
    (gpu,) = read_nvidia_smi(A100)
    assert gpu.numbers == {"memory_capacity_gb": pytest.approx(81920 * 1024**2 / 1e9), "max_clock_mhz": 1410}
    assert gpu.facts == {"driver": "550.54.15"}


@pytest.mark.parametrize(
    ("device", "gpus", "said"),
    [
        ("mi300x", [("gfx942", 304)], None),
        ("gfx942", [("gfx942", 304)], "num_cus 304 (profile: 228)"),
        ("mi300x", [("gfx942", 38)], "num_cus 38 (profile: 304); features are computed with the profile mi300x"),
        ("gfx90a", [("gfx942", 304)], "the rows are of gfx90a, but this machine has gfx942 (rocminfo)"),
        ("a100", [("gfx942", 304)], "the rows are of a100, but this machine has gfx942 (rocminfo)"),
        ("wormhole_b0", [("gfx942", 304)], None),
    ],
)
def test_a_profile_that_the_tools_contradict_is_named(tools, device, gpus, said):
    """Another device, or other numbers; a device of a kind that no tool knows is not judged."""
    tools("rocminfo", rocminfo(*gpus))
    captured = capture(device)
    assert "GPU-0123456789abcdef" not in captured.tools[0].text  # a dataset may be published
    found = contradictions(captured, devices.get(device))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_cpu_may_be_used_in_part(tools):
    """Fewer CPUs, less cache and a lower clock than the machine has are no contradiction; more are."""
    tools("lscpu", OLD_LSCPU)
    local = devices.get("local")
    numbers = {"num_cus": 2, "max_clock_mhz": 2900, "l3_cache_kb": 3000, "l1_cache_kb": 32, "l2_cache_kb": 256}
    part = Device(local.name, local.title, "cpu", numbers)
    assert contradictions(capture("x"), part) == []
    (said,) = contradictions(capture("x"), Device("big", "big", "cpu", {**numbers, "num_cus": 8, "l1_cache_kb": 48}))
    assert "num_cus 4 (profile: 8), l1_cache_kb 32 (profile: 48)" in said


def test_what_the_tools_say_is_kept_in_the_dataset_and_shown(tools, tmp_path, run, monkeypatch):
    """Numbers, text without what identifies a card, and why a tool is missing; a warning where it contradicts the profile."""
    tools("nvidia-smi", A100.replace("81920", "40960") * 2)
    tools("rocminfo", "ROCk module is NOT loaded\n", then="exit 1")
    out = tmp_path / "d"
    here = os.path.dirname(__file__)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    wanted = Request(TRITON, "odd_backends:Mixed", ("0",), out, policy=QUICK, capture_hw=True)  # its device is an a100
    said = []

    class Listener(Progress):
        def say(self, text):
            said.append(text)

    summary = collect(wanted, [VECTORS], progress=Listener())
    (record,) = Dataset.open(out).hardware
    assert {tool.name: tool.error.split(":")[0] for tool in record.tools} == {
        "rocminfo": "the program ended with exit code 1", "nvidia-smi": "", "lscpu": "not installed",
    }  # fmt: skip
    assert record.tools[1].text.count("A100") == 2
    assert "--query-gpu=name,driver_version,memory.total,clocks.max.sm" in (tools.folder / "nvidia-smi.asked").read_text()
    (warning,) = summary.hardware["contradictions"]
    assert warning.startswith("nvidia-smi says of NVIDIA A100-SXM4-80GB: memory_capacity_gb 42.9497 (profile: 80)")
    assert f"! {warning}" in said
    code, shown, _ = run("inspect", out)
    assert code == 0
    assert "hardware, nvidia-smi: 1 NVIDIA A100-SXM4-80GB: memory_capacity_gb=42.9497 max_clock_mhz=1410" in shown
    assert "hardware, lscpu: not installed" in shown
    assert f"! {warning}" in shown
    code, shown, _ = run("inspect", out, "--json")
    assert json.loads(shown)["hardware"][0]["contradictions"] == [warning]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A dataset that was collected without asking any tool."""
    out = tmp_path_factory.mktemp("plain") / "d"
    collect(Request(TRITON, "kerncast.testing.backends:Instant", ("0",), out, policy=QUICK), [VECTORS])
    return out


def test_records_that_say_the_same_are_kept_once_and_merging_keeps_them(tools, plain, tmp_path):
    """A second capture of the same machine changes nothing, another machine adds one; the number of records is bounded."""
    assert json.loads((plain / "dataset.json").read_text())["hardware"] == []
    tools("lscpu", OLD_LSCPU)
    datasets = [Dataset.open(plain).save(tmp_path / name) for name in "ab"]
    for dataset in datasets:
        first = capture("a100")
        dataset.keep_hardware(first)
        dataset.keep_hardware(msgspec.structs.replace(first, at="9999"))
        assert Dataset.open(dataset.path).hardware == (first,)
        tools("lscpu", NEW_LSCPU)
    merged = Dataset.merge(datasets, tmp_path / "both")
    assert {item.reported[0].numbers["num_cus"] for item in Dataset.open(merged.path).hardware} == {4, 64}
    many = [msgspec.structs.replace(first, at=str(day), device=f"d{day}") for day in range(1000, 1020)]
    assert [item.at for item in latest(reversed(many))] == [str(day) for day in range(1012, 1020)]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\x00\xff\xfe" * 99, "\x1b[2J\x1b]0;x\x07<script>\n: : :\nCPU(s): 1" + "0" * 999 + "\n", "Agent 1\n" * 9999,
        "Agent 1\n  Name: gfx\x1b[31m\n  Device Type: GPU\n  Compute Unit: -3\n  L1: nan KB\n  Segment: GROUP\n  Size: 1e999\n",
        "a,b,c,d\n" * 5000, '"' * 100_000, "CPU(s): 0\nL1d cache: 0 KiB (0 instances)\nL2 cache: 1 KiB (0 instances)\n",
    ],
    ids=range(8),
)  # fmt: skip
def test_hostile_output_is_text_and_nothing_more(tools, plain, tmp_path, run, text):
    """It is cut, every number in it is finite and positive, and a terminal sees no control character."""
    for name in ("rocminfo", "nvidia-smi", "lscpu"):
        tools(name, text)
    Dataset.open(plain).save(tmp_path / "d").keep_hardware(capture("a100"))
    (record,) = Dataset.open(tmp_path / "d").hardware
    assert all(len(tool.text) <= MOST_CHARACTERS for tool in record.tools)
    assert len(record.reported) <= 2 * 64 + 1
    assert all(0 < value < 1e18 for item in record.reported for value in item.numbers.values())
    code, shown, _ = run("inspect", tmp_path / "d")
    assert (code, "\x1b" in shown) == (0, False)


def test_a_tool_that_hangs_or_never_stops_printing_is_ended(tools, monkeypatch):
    """It costs its time limit and a sentence; so does a file that cannot be run."""
    monkeypatch.setattr(asking, "SECONDS", 1.0)
    tools("lscpu", OLD_LSCPU, then="while :; do echo 'CPU(s): 4'; done")
    tools("rocminfo", then="/bin/sleep 60")
    (tools.folder / "nvidia-smi").write_bytes(b"\x7fELF no program")
    os.chmod(tools.folder / "nvidia-smi", 0o755)
    found = {tool.name: tool for tool in capture("x").tools}
    assert found["lscpu"].cut
    assert len(found["lscpu"].text) == MOST_CHARACTERS
    assert "did not end within 1 s" in found["rocminfo"].error
    assert "cannot be run" in found["nvidia-smi"].error
