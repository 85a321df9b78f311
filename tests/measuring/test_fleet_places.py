"""What a collection on a cluster decides without one: which datasets it writes, and what it refuses before it starts."""

import pytest

import kerncast
from kerncast.data.journal import NAME, Header
from kerncast.errors import KerncastError
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.fleet import place_for
from kerncast.measuring.journal import Journal

TRITON = family_named("gemm/triton")
A100, H100 = ("a100", '{"triton":"3.1"}'), ("h100", '{"triton":"3.1"}')


def begin(path, kind):
    """An unfinished collection of a kind."""
    path.mkdir()
    Journal.begin(path / NAME, Header(TRITON.id, "triton", kind[0], {"triton": "3.1"}, "r")).close()


def test_each_kind_finds_its_dataset_again_and_no_other_one(tmp_path):
    """Datasets that only begin with the same name are left alone, even if they are of the same kind."""
    out = tmp_path / "d"
    begin(tmp_path / "d-old", A100)
    assert place_for(A100, out, TRITON, set()) == out
    begin(out, A100)
    assert place_for(A100, out, TRITON, set()) == out
    assert place_for(H100, out, TRITON, set()) == tmp_path / "d-h100"
    begin(tmp_path / "d-h100", H100)
    assert place_for(H100, out, TRITON, set()) == tmp_path / "d-h100"
    assert place_for(H100, out, TRITON, {tmp_path / "d-h100"}) == tmp_path / "d-h100-2"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"problems": "cubess"}, "cubess"),
        ({"vary": {"dtype": "fp61"}}, "fp61"),
        ({"configs": "sample"}, "sample"),
        ({"out": "folder"}, "folder is not a kerncast dataset"),
        ({"measuring": kerncast.Measuring(devices="0,1")}, "leave out `devices`"),
    ],
)
def test_wrong_arguments_are_refused_before_a_cluster_is_asked_for_anything(tmp_path, monkeypatch, wrong, why):
    """No device has to come up for an error that it could not change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("kerncast.app.api.collect.connected", lambda address: pytest.fail("it was asked"))
    right = {"problems": "cubes", "vary": {"dtype": "fp16", "layout": "rcr"}, "out": "d"}
    with pytest.raises(KerncastError, match=why):
        kerncast.collect(TRITON, cluster=kerncast.Cluster(on="ray"), **{**right, **wrong})
