"""Hardware profiles and the detection of this machine."""

import os

import pytest

from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices

CPUINFO = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Test CPU @ 2.10GHz
cpu MHz\t\t: 2100.000
flags\t\t: fpu sse2 avx avx2 avx512f

processor\t: 1
model name\t: another
"""


def test_all_promised_profiles_ship_and_every_number_has_a_source():
    """A number without a source is a guess."""
    known = devices.profiles()
    older = {"gfx942", "gfx950", "gfx90a", "a100", "h100", "h200", "b200", "l40s", "wormhole_b0", "cpu_generic"}
    amd = {"mi300x", "mi325x", "mi350x"}
    nvidia = {
        "h20",
        "gh200",
        "b100",
        "b300",
        "gb200",
        "gb300",
        "rtx_pro_6000",
        "rtx_pro_6000_server",
        "l4",
        "a10",
        "t4",
        "v100",
    }
    assert older | amd | nvidia | {"rtx_4090", "rtx_5090", "b60"} <= set(known)
    for device in known.values():
        assert set(device.sources) == {*device.numbers, *device.peak_tflops}
        assert all(len(source) > 10 for source in device.sources.values()), device.name


# Dense operations per clock and compute unit (white papers of CDNA 2 to 4, of Volta to Blackwell and of Xe2).
RATES = {
    "gfx90a": {"fp64": 256, "fp32": 256, "fp16": 1024, "int8": 1024},
    "gfx942": {"fp64": 256, "fp32": 256, "fp16": 2048, "fp8": 4096, "int8": 4096},
    "gfx950": {"fp64": 128, "fp32": 256, "fp16": 4096, "fp8": 8192, "int8": 8192},
    "sm_70": {"fp64": 64, "fp32": 128, "fp16": 1024},
    "sm_75": {"fp32": 128, "fp16": 1024, "int8": 2048, "int4": 4096},
    "sm_80": {"fp64": 128, "fp32": 128, "fp16": 2048, "int8": 4096, "int4": 8192},
    "sm_86": {"fp32": 256, "fp16": 1024, "int8": 2048, "int4": 4096},
    "sm_89": {"fp32": 256, "fp16": 1024, "fp8": 2048, "int8": 2048, "int4": 4096},
    "sm_90": {"fp64": 256, "fp32": 256, "fp16": 4096, "fp8": 8192, "int8": 8192},
    "sm_120": {"fp32": 256, "fp16": 1024, "fp8": 2048, "int8": 2048, "nvfp4": 4096},
    "bmg_g21": {"fp32": 256, "fp16": 2048, "int8": 4096},
}
# GeForce cards add up in 32 bits at half the rate.
HALVED = {("rtx_4090", "fp16"), ("rtx_4090", "fp8"), ("rtx_5090", "fp16"), ("rtx_5090", "fp8")}
# Hopper's Tensor Core peaks below 32 bits are rated at a lower clock than its highest one.
HOPPER_TENSOR_MHZ = 1830


def test_peaks_are_dense_and_follow_from_units_and_clock():
    """Units x operations per clock x clock gives the stated peaks: a rate with sparsity would be off by a factor of two."""
    checked = 0
    for device in devices.profiles().values():
        peaks, rates = device.peak_tflops, RATES.get(device.architecture or "", {})
        for narrow in ("bf16", "bf8"):
            wide = {"bf16": "fp16", "bf8": "fp8"}[narrow]
            assert device.kind == "npu" or peaks.get(narrow, peaks.get(wide)) == peaks.get(wide), (device.name, narrow)
        if not {"num_cus", "max_clock_mhz"} <= set(device.numbers):
            continue
        for dtype in rates.keys() & peaks.keys():
            low = device.architecture == "sm_90" and dtype not in ("fp64", "fp32")
            clock = HOPPER_TENSOR_MHZ if low else device.numbers["max_clock_mhz"]
            rate = rates[dtype] / 2 if (device.name, dtype) in HALVED else rates[dtype]
            assert peaks[dtype] == pytest.approx(device.numbers["num_cus"] * rate * clock / 1e6, rel=0.01), (device.name, dtype)
            checked += 1
    assert checked > 80


def test_rates_of_blackwell_boards_double_with_half_the_bits():
    """Boards whose clock is unknown are checked by ratio; only Blackwell Ultra triples the 4-bit rate and cuts INT8."""
    for name in ("b100", "b200", "gb200", "b300", "gb300"):
        peaks, ultra = devices.get(name).peak_tflops, devices.get(name).architecture == "sm_103"
        assert (peaks["fp8"] / peaks["fp16"], peaks["nvfp4"] / peaks["fp8"]) == (2, 3 if ultra else 2)
        assert peaks["int8"] / peaks["fp8"] == (pytest.approx(1 / 30, rel=0.05) if ultra else 1)


def test_the_reference_values_of_gfx950_are_honoured():
    """The profile agrees with the table that CK Tile's heuristics use."""
    numbers = devices.get("gfx950").numbers
    assert (numbers["num_cus"], numbers["shader_engines"], numbers["max_clock_mhz"]) == (256, 32, 2400)
    assert (numbers["lds_capacity_bytes"], numbers["num_xcd"], numbers["wavefront_size"]) == (160 * 1024, 8, 64)


def test_a_device_is_found_by_whatever_a_driver_prints():
    """Case and punctuation do not matter, no two profiles share a name, and other boards of a chip are not mistaken for it."""
    printed = {
        "MI300X": "mi300x", "amd instinct mi355x": "gfx950", "nvidia a100-sxm4-80gb": "a100", "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GH200 480GB": "gh200", "NVIDIA B300 SXM6 AC": "b300", "Tesla T4": "t4", "Tesla V100-SXM2-32GB": "v100",
        "NVIDIA GeForce RTX 4090": "rtx_4090", "Intel(R) Arc(TM) Pro B60 Graphics": "b60", "gfx942:sramecc+:xnack-": "gfx942",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_server", "LOCAL": devices.local().name,
    }  # fmt: skip
    assert {text: devices.get(text).name for text in printed} == printed
    spelled = [devices.plain(name) for item in devices.profiles().values() for name in (item.name, *item.aliases)]
    assert len(spelled) == len(set(spelled))
    for other in ("NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        assert devices.named(other) is None
    for architecture, boards in (("sm_90", "gh200, gh200_144gb, h100, h20, h200"), ("SM_75", "t4")):
        with pytest.raises(
            InvalidValue, match=f"'{architecture}' is an architecture, not a device: name one, such as {boards}"
        ):
            devices.get(architecture)


def test_an_architecture_agrees_with_its_parts_and_contradicts_others():
    """`gfx942` is MI300A, MI300X or MI325X: the caller chooses, whichever side says more."""
    arch, part, other = devices.get("gfx942"), devices.get("mi300x"), devices.get("gfx950")
    assert [item.name for item in devices.parts("gfx942")] == ["gfx942", "mi300x", "mi325x"]
    assert (arch.numbers["num_cus"], part.numbers["num_cus"]) == (228, 304)
    assert devices.agreed(arch, part) is devices.agreed(part, arch) is devices.agreed(None, part) is devices.agreed(part, None)
    with pytest.raises(InvalidValue, match=r"measured on gfx942, not gfx950: name one of its parts \(gfx942, mi300x, mi325x\)"):
        devices.agreed(arch, other)
    with pytest.raises(InvalidValue, match="measured on mi300x, not mi325x: leave `device` out"):
        devices.agreed(part, devices.get("mi325x"))


def machine(folder, cpuinfo=CPUINFO, sizes=(("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"))):
    proc, cache = folder / "proc", folder / "sys/devices/system/cpu/cpu0/cache"
    proc.mkdir(parents=True)
    (proc / "cpuinfo").write_text(cpuinfo)
    for index, (level, kind, size) in enumerate(sizes):
        entry = cache / f"index{index}"
        entry.mkdir(parents=True)
        (entry / "level").write_text(level + "\n")
        (entry / "type").write_text(kind + "\n")
        (entry / "size").write_text(size + "\n")
    return devices.detect(proc, folder / "sys")


def test_a_machine_is_described_by_what_it_says_about_itself(tmp_path):
    """Model, cores and ISA are the identity; caches come from sysfs, data caches only."""
    device = machine(tmp_path)
    assert device.name.startswith("intel_xeon_test_cpu_2_10ghz-")
    assert device.name.endswith("c-avx512")
    assert (device.numbers["l1_cache_kb"], device.numbers["l2_cache_kb"], device.numbers["vector_bytes"]) == (48, 2048, 64)
    assert device.numbers["max_clock_mhz"] == 2100


def test_what_a_machine_does_not_say_stays_unknown(tmp_path):
    """No cache size, clock or peak is made up."""
    device = machine(tmp_path, cpuinfo="", sizes=())
    assert set(device.numbers) == {"num_cus"}
    assert not device.peak_tflops


def test_this_machine_is_a_device():
    """`local` and its full name are the same device."""
    local = devices.get("local")
    assert local.kind == "cpu"
    assert devices.get(local.name) is local


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = 'x'", "title"),
        (
            "name = 'x'\ntitle = 'x'\nkind = 'gpu'\n[numbers]\nnum_cus = 3",
            "'numbers.…' must be a table of keys, got a whole number",
        ),
        ("name = 'x'\ntitle = 'x'\nkind = 'gpu'\n[numbers]\nspeed = { value = 3, source = 'y' }", "unknown number 'speed'"),
        (
            "name = 'x'\ntitle = 'x'\nkind = 'gpu'\n[numbers]\nnum_cus = { value = -3, source = 'y' }",
            "must be a positive number",
        ),
        (
            "name = 'x'\ntitle = 'x'\nkind = 'gpu'\n[peak_tflops]\nbf16 = { value = 1e300, source = 'y' }",
            "bf16 must be a positive number from 1e-12 to 1e+18, got 1e+300",
        ),
        ("name = 'x'\ntitle = 'x'\nkind = 'toaster'", "kind must be one of"),
        ("name = ", "not a device profile"),
    ],
)
def test_a_bad_profile_is_refused_by_name(tmp_path, text, why):
    """A file of one's own is checked like the shipped ones."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"mine\.toml") as caught:
        devices.get(str(path))
    assert why in str(caught.value)


def test_a_profile_that_is_a_pipe_is_refused(tmp_path):
    """Nobody may ever write to it."""
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(BadFile, match=r"mine\.toml is not a device profile: it is not a file"):
        devices.get(str(tmp_path / "mine.toml"))
