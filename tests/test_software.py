"""Short names of software: `vllm`, `vllm==0.24.0`, and which version is the newest."""

import random
from importlib import import_module

import polars as pl
import pytest

import kerncast
from kerncast.core import software
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.data.filters import SoftwareRows, resolved
from kerncast.errors import InvalidValue, NotFound
from kerncast.learning.table import load_table
from kerncast.library.declared.family_file import family_named

# As PEP 440 orders them, the oldest first; what is no version comes before all.
ORDERED = [
    "", "nightly", "0.1.dev19262", "0.5.6", "0.5.6.post2", "0.5.6.post10", "0.5.14", "0.24.0.dev3", "0.24.0a1", "0.24.0b2.dev1",
    "0.24.0b2", "v0.24.0rc1", "0.24.0-rc.9", "0.24.0rc20", "0.24.0", "0.24.0+cu12", "0.24.0+cu13.2", "0.24.0+7", "0.24.1",
    "1.3.0rc20", "2021.15.9", "1!0.1",
]  # fmt: skip


def text(framework, version):
    return f'{{"framework":"{framework}","version":"{version}"}}'


def test_versions_are_ordered_as_python_packages_are():
    """rc before the release, post after it, numbers by value; packaging agrees where it can read them."""
    shuffled = random.Random(0).sample(ORDERED, len(ORDERED))
    assert sorted(shuffled, key=software.version_key) == ORDERED
    assert software.version_key("1.0") == software.version_key("1.0.0") == software.version_key("v1")
    versions = import_module("packaging.version")
    assert sorted((item for item in shuffled if software.version_key(item)[0] == 0), key=versions.Version) == ORDERED[2:]


@pytest.mark.parametrize("odd", ["9" * 100_000, "1." * 5_000 + "1", "\u0664.1", "1.0\n", "{" * 100_000, "v" * 1_000_000])
def test_hostile_versions_and_names_are_compared_and_never_crash(odd):
    """A version of a million digits, other alphabets, line ends and brackets."""
    assert isinstance(software.version_key(odd) < software.version_key("1.0"), bool)
    assert software.matching(odd, [odd, text("VLLM", "1")])[:1] in ((odd,), ())
    assert len(software.lacks(odd, [odd])) < 1_000


def test_a_short_name_means_every_spelling_and_gives_the_newest_version():
    """Case and punctuation of a framework do not matter; without a version the newest is meant."""
    said = [("VLLM", "0.20.0"), ("vLLM", "0.24.0"), ("VLLM", "0.24.0rc1"), ("TRTLLM", "1.3.0rc20")]
    known = [*(text(*item) for item in said), '{"torch":"2.13"}']
    for name in ("vllm", "vLLM", "V-LLM"):
        assert software.newest(name, known) == (known[1],)
    assert software.matching("vllm", known) == (known[1], known[2], known[0])
    assert software.newest("vllm==0.20", known) == (known[0],)
    assert software.newest("tensorrt-llm", known) == software.newest("trtllm==1.3.0rc20", known) == (known[3],)
    assert software.newest("torch", known) == software.newest("torch==2.13", known) == (known[4],)
    # The forms with a part's name, and whole texts.
    assert software.newest("version=0.24.0rc1", known) == software.newest(known[2], known) == (known[2],)
    for absent in ("sglang", "vllm==9", "", "=="):
        assert software.matching(absent, known) == ()
    with pytest.raises(
        NotFound, match=r"^gemm on h100 has nothing of the software 'sglang': it has torch 1, trtllm==1\.3\.0rc20, vllm"
    ):
        software.newest("sglang", [*known[:4], "torch 1"], "gemm on h100")


def test_a_model_of_several_versions_has_the_names_that_all_of_them_share():
    """A model pooled over devices was trained on vllm, and on no single version of it."""
    pooled = (text("VLLM", "0.24.0"), text("VLLM", "0.20.0"))
    assert software.is_same(pooled, "vllm")
    assert software.is_same(pooled, "framework=VLLM")
    assert software.is_same(pooled, pooled[::-1])
    for other in ("vllm==0.24.0", pooled[0], "trtllm", ""):
        assert not software.is_same(pooled, other)
    assert software.is_same(pooled[:1], "vllm==0.24.0")


@pytest.fixture
def rows(tmp_path):
    """GEMMs on two devices with two versions of one framework; a third device has only another framework."""
    family = family_named("gemm/library")
    measured = [
        ("h100", text("VLLM", "0.20.0")), ("h100", text("VLLM", "0.24.0")), ("a100", text("VLLM", "0.20.0")),
        ("h100", text("TRTLLM", "1.3.0rc20")), ("l40s", text("TRTLLM", "1.0")), ("h100", None),
    ]  # fmt: skip
    frame = pl.DataFrame(
        {
            "device": [device for device, _ in measured], "software": [said for _, said in measured], "status": "ok",
            "time_ns": [1000.0 + place for place in range(len(measured))], "config.kernel_source": "vllm_default",
            **{f"problem.{name}": 128 for name in "MNK"}, "problem.dtype": "bf16", "problem.layout": "rcr",
        }
    )  # fmt: skip
    dataset = Dataset.create(tmp_path / "rows")
    dataset.append(family, frame)
    return dataset


def test_a_condition_on_software_keeps_the_newest_version_of_each_device(rows):
    """Not the newest of all: a device with only an older version keeps that one. Whole texts mean what they meant."""

    def kept(*where):
        return [time - 1000 for time in rows.read(where=where)["time_ns"]]

    assert kept("software=vllm") == kept("software=vLLM") == [1, 2]
    assert kept("software=vllm==0.20.0") == kept("software=version=0.20.0") == [0, 2]
    assert kept("software=vllm", "device=h100") == [1]
    assert kept("software=vllm,trtllm") == [1, 2, 3, 4]
    assert kept("software!=vllm") == [3, 4]
    assert kept(f"software={text('VLLM', '0.20.0')}") == [0, 2]
    assert [piece.height for piece in rows.pieces(where=("software=trtllm",))] == [2]
    with pytest.raises(NotFound, match=r"software 'sglang': it has trtllm==1.0, trtllm==1.3.0rc20, vllm==0.20.0"):
        kept("software=sglang")


def test_devices_without_the_software_are_named_with_what_they_have(rows):
    """So that nobody takes a model of two devices for one of three."""
    (found,) = resolved(("software=vllm",), rows.devices_and_software, "gemm/library")
    assert isinstance(found, SoftwareRows)
    assert found.notes == ("l40s has nothing of the software 'vllm': it has trtllm==1.0; its rows are left out",)


def test_training_takes_the_newest_version_of_all_datasets_together_and_says_what_devices_lack(rows, tmp_path):
    """A newer version in another dataset wins on its device; nothing of the older one is learned from."""
    said = []

    class Told(Progress):
        def say(self, text):
            said.append(text)

    newer = Dataset.create(tmp_path / "newer")
    newest = rows.read(where=("device=h100", "software=vllm")).with_columns(software=pl.lit(text("VLLM", "0.24.1")))
    newer.append(family_named("gemm/library"), newest)
    table = load_table([rows, newer], where=("software=vllm",), pool=True, progress=Told())
    assert table.software == (text("VLLM", "0.20.0"), text("VLLM", "0.24.1"))
    assert [device.name for device in table.devices] == ["a100", "h100"]
    assert said == ["l40s has nothing of the software 'vllm': it has trtllm==1.0; its rows are left out"]


def test_a_software_that_is_no_name_is_refused(rows):
    """An empty one would keep everything, or nothing."""
    with pytest.raises(InvalidValue, match="`software` takes one name"):
        kerncast.train(rows, software=" ")
