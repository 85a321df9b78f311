"""Fits as tasks of a Ray cluster give the same bytes as in this process."""

import pytest
from tests.support.clusters import small_cluster
from tests.support.needs import require

import kerncast

require("ray")
pytestmark = pytest.mark.needs("make soak")

OPTIONS = {
    "plain": {"trees": 20},
    "mined": {"trees": 20, "hard_mining": 1},
    "tuned": {"tune": 2, "folds": 2, "trees": 5},
    "mlp": {"kind": "mlp"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Triton tiles whose times follow a formula."""
    return kerncast.collect(
        "gemm/triton",
        problems="grid:M=16,32,64,128,256,512;N=64,128,256;K=64,256",
        vary={"dtype": "fp16", "layout": "rcr"},
        configs="sample:20",
        measuring=kerncast.Measuring(backend="kerncast.testing.faults:Analytic", samples=2, warmup="0s"),
        out=tmp_path_factory.mktemp("data") / "d",
        progress=None,
    )


def files(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_model_is_the_same_bytes_wherever_it_is_fitted(data, tmp_path):
    """Folds, kinds held out, trials, mining, networks: every file of the model; and the folds and seeds of `evaluate`."""
    with small_cluster() as cluster:
        cluster.add(0, cpus=2)
        for name, options in OPTIONS.items():
            here = kerncast.train(data, out=tmp_path / name, progress=None, **options)
            there = kerncast.train(
                data,
                out=tmp_path / f"{name}-ray",
                cluster=kerncast.Cluster(on="ray", address=cluster.address),
                progress=None,
                **options,
            )
            assert files(there.path) == files(here.path), name
        judged = {"split": "size", "seeds": 2, "tiers": False, "progress": None}
        here = kerncast.evaluate(tmp_path / "tuned", data, **judged)
        there = kerncast.evaluate(
            tmp_path / "tuned", data, cluster=kerncast.Cluster(on="ray", address=cluster.address), **judged
        )
    assert there.as_json() == here.as_json()
