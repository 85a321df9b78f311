"""The cache of compiled kernels: what is damaged is built again, and a folder that others can write to is not used."""

import pytest
from tests.support.needs import require

from kerncast.errors import CannotWrite
from kerncast.measuring.backends.cpu.build import Library, find_compiler
from kerncast.measuring.backends.cpu.gemm.codegen import Packer

PACKER = Packer("fp32", 4)


@pytest.fixture
def compiler():
    found = find_compiler()
    if found is None:
        require("a C compiler")
    return found


def damaged(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    path.unlink()  # a new file: the old one is loaded
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_a_damaged_object_is_built_again(compiler, tmp_path, how, suffix):
    """Kernels and the fixed parts alike, whichever of their two files is damaged; nothing damaged is loaded."""
    first = Library(compiler, tmp_path)
    first.build([PACKER])
    first.fixed("probe")
    sound = {path: path.read_bytes() for path in first.folder.iterdir()}
    for path in sound:
        if path.suffix == suffix:
            damaged(path, how)
    again = Library(compiler, tmp_path)
    assert again.missing([PACKER]) == [PACKER]
    again.build([PACKER])
    assert again.function(PACKER, PACKER.symbol(True))
    assert again.fixed("probe").kc_vector_bytes() > 0
    assert set(again.folder.iterdir()) == set(sound)
    assert Library(compiler, tmp_path).missing([PACKER]) == []


def test_a_cache_that_others_can_write_to_is_not_used(compiler, tmp_path, monkeypatch):
    """Code from it would be run, so the refusal names the folder and the next step."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path))
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu").chmod(0o777)
    with pytest.raises(CannotWrite, match=r"cpu is not used, because others may write .*set KERNCAST_CACHE"):
        Library(compiler)
