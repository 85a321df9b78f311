"""Collecting on a Ray cluster: several nodes on this machine, which come and end while they measure."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import polars as pl
import pytest
from tests.support.clusters import DidNotStart, small_cluster, wait_until

import kerncast
from kerncast.app.api.arguments import connected
from kerncast.core.progress import Progress
from kerncast.data import Dataset
from kerncast.data.manifest import record_of
from kerncast.errors import InvalidValue, KerncastError
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Request
from kerncast.measuring.fleet import kind_of
from kerncast.measuring.fleet.node import release
from kerncast.measuring.messages import Ready
from kerncast.measuring.scheduling import DeviceLost
from kerncast.testing.backends import vector_texts
from kerncast.testing.faults import FAULTY, OUTCOMES, plan, telling_ns

pytest.importorskip("ray", reason="needs ray")

from kerncast.measuring.fleet.discovery import DeviceGroup, Discovery, _SlotState
from kerncast.measuring.fleet.run import FleetRun, _KindRun
from kerncast.measuring.fleet.scheduling import RemoteDevice, Slot

TRITON = family_named("gemm/triton")
SLEEPING = "kerncast.testing.faults:Sleeping"
SWEEP = {"problems": "grid:M=64,65,66,67,68,69;N=64;K=64", "vary": {"dtype": "fp16", "layout": "rcr"}, "configs": "sample:40"}
QUICK = {"samples": 3, "warmup": "0s", "chunk_size": 16}
HOUR = 3600.0
# On a busy machine, Ray takes minutes to start a node.
PATIENCE = 600.0


@contextlib.contextmanager
def environment(**values):
    """Nodes that are started inside have these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def ray_starts():
    """What starts a node inside leaves the test out on a machine that is too busy for it."""
    try:
        yield
    except DidNotStart as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def faults():
    """Two vectors that end their worker, of problems that are measured early and late."""
    vectors = pl.concat(list(kerncast.sweep(TRITON, device="a100", **SWEEP).iter_blocks()))
    texts = vector_texts(TRITON, vectors)
    return dict.fromkeys(texts, "") | {texts[5]: "segfault", texts[-7]: "segfault"}


@pytest.fixture(scope="module")
def cluster(faults):
    """A head that measures nothing."""
    here = os.path.dirname(__file__)
    named = {text: fault for text, fault in faults.items() if fault}
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with environment(PYTHONPATH=path, **plan(SLEEPING, named)), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(here)
        with ray_starts(), small_cluster() as found:
            yield found


class Heard(Progress):
    """Remembers which devices measured how much."""

    def __init__(self):
        self.devices, self.said = [], []

    def result(self, status, **facts):
        self.devices.append(facts["device"])

    def say(self, text):
        self.said.append(text)


def assert_all_measured(rows, faults):
    """One row for each vector, with the status of its fault and its own time."""
    found = dict(zip(vector_texts(TRITON, rows), rows.select("status", "time_ns").iter_rows(), strict=True))
    assert len(found) == rows.height
    assert {text: status for text, (status, _) in found.items()} == {text: OUTCOMES[fault] for text, fault in faults.items()}
    assert all(time_ns == telling_ns(text) for text, (status, time_ns) in found.items() if status == "ok")


def test_nodes_come_and_end_in_mid_sweep(cluster, faults, tmp_path, capsys, monkeypatch):
    """Every vector gets its own row; what a killed node had goes to others unblamed; only a vector that ends workers is."""
    # Both devices begin together, and none is at the gate for too long, however slowly Ray starts its processes.
    monkeypatch.setattr("kerncast.measuring.fleet.run.TOGETHER_SECONDS", HOUR)
    gate, heard = tmp_path / "gate", Heard()
    with environment(FLEET_GATE=str(gate)), ray_starts():
        cluster.add(1, "gated")
        doomed = cluster.add(1, "gated")
    with ThreadPoolExecutor(1) as pool:  # Ray starts nodes in the main thread only
        collected = pool.submit(
            kerncast.collect, TRITON, cluster=kerncast.Cluster("ray", cluster.address), out=tmp_path / "d", progress=heard,
            measuring=kerncast.Measuring("fleet_backends:Gated", resource="gated", timeout=HOUR, **QUICK), **SWEEP,
        )  # fmt: skip
        try:
            assert wait_until(lambda: (len(heard.devices) >= 40 and len(set(heard.devices)) == 2) or collected.done(), PATIENCE)
            cluster.kill(doomed)
            before = set(heard.devices)
            with ray_starts():
                cluster.add(1, "gated")
            assert wait_until(lambda: set(heard.devices) - before or collected.done(), PATIENCE)
        finally:
            gate.touch()
        data = collected.result()
    rows = data.read()
    assert_all_measured(rows, faults)
    assert any(doomed.node_id[:6] in name for name in data.collected.summary.lost)
    assert rows["worker"].n_unique() >= 3
    assert any("handed out again" in text for text in heard.said)
    assert not (data.path / "journal.jsonl").exists()
    assert capsys.readouterr().out == ""


def test_nodes_do_not_import_from_the_folder_of_the_driver(cluster, planted):
    """Ray would put it first on their path."""
    with connected(cluster.address) as ray:
        path = ray.get(ray.remote(lambda: importlib.import_module("sys").path).options(num_cpus=0).remote())
    assert str(planted) not in path
    assert os.path.dirname(__file__) in path  # from PYTHONPATH


def test_another_version_and_another_resource_are_refused(cluster, tmp_path, monkeypatch):
    """Both sides are named with their versions; a resource that no node has is refused with those that there are."""
    with ray_starts():
        cluster.add(1)
    wanted = {"cluster": kerncast.Cluster("ray", cluster.address), "out": tmp_path / "d", **SWEEP}
    with pytest.raises(InvalidValue, match=r"has the resource cards \(they have .*card.*`resource`"):
        kerncast.collect(TRITON, measuring=kerncast.Measuring(FAULTY, resource="cards"), **wanted)
    monkeypatch.setattr("kerncast.measuring.fleet.discovery.release", lambda: "0.0.9 (0123)")
    with pytest.raises(DeviceLost) as refused:
        kerncast.collect(TRITON, measuring=kerncast.Measuring(FAULTY, resource="card"), **wanted)
    assert f"it has kerncast {release()}, and this is 0.0.9 (0123)" in str(refused.value)
    assert not (tmp_path / "d").exists()


def test_an_address_from_the_environment_is_tried_before_ray_waits_for_it(tmp_path, monkeypatch):
    """Ray itself would try for minutes to reach a head that does not answer."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(KerncastError, match="nothing answers at RAY_ADDRESS"):
        kerncast.collect(
            TRITON,
            measuring=kerncast.Measuring(backend=FAULTY),
            cluster=kerncast.Cluster(on="ray"),
            out=tmp_path / "d",
            **SWEEP,
        )


def ready_device(name):
    """What a device of that name reports when it is ready."""
    return Ready(msgspec.to_builtins(record_of(devices.get(name))), {"triton": "3.1"})


def test_devices_whose_collection_is_over_are_not_reported_as_lost(monkeypatch):
    """While another kind is still measured: neither the ones that measured nor one that comes up later."""
    monkeypatch.setattr("ray.kill", lambda actor: None)
    monkeypatch.setattr(Discovery, "_scan", lambda self: None)
    discovery, ready = Discovery("card", lambda slot: None), ready_device("a100")
    device = RemoteDevice(Slot("0123456789", "host", "0"), object(), ready)
    discovery.slots[device.slot] = _SlotState(actor=device.actor)
    group = discovery.groups[kind_of(ready)] = DeviceGroup(discovery.departed, ready)
    group.dismiss([device])
    discovery.look()
    assert discovery.slots[device.slot] == _SlotState(spare=True)
    assert not discovery.refusals


def test_a_kind_that_is_measured_does_not_stop_the_same_command_for_another_one(tmp_path, monkeypatch):
    """A finished dataset is refused only if there is nothing else to go on with."""
    monkeypatch.setattr(_KindRun, "_run", lambda self: None)
    configs = TRITON.config.sample(1, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    sizes = {"M": 64, "N": 64, "K": 64, "dtype": "fp16", "layout": "rcr"}
    rows = configs.rename(lambda name: f"config.{name}").with_columns(
        *(pl.lit(value).alias(f"problem.{name}") for name, value in sizes.items()),
        device=pl.lit("a100"), status=pl.lit("ok"), time_ns=pl.lit(1e4), software=pl.lit('{"triton":"3.1"}'),
    )  # fmt: skip
    Dataset.create(tmp_path / "d").append(TRITON, rows)

    def extended(*names):
        run = FleetRun(Request(TRITON, FAULTY, (), tmp_path / "d"), None, "card", progress=Progress())
        for ready in map(ready_device, names):
            run.discovery.groups[kind_of(ready)] = DeviceGroup(run.discovery.departed, ready)
        run._begin(list(run.discovery.groups))
        return {kind.request.out.name: kind.request.extend for kind in run.kinds.values()}

    assert extended("a100") == {"d": False}
    assert extended("a100", "h100") == {"d": True, "d-h100": True}


@pytest.mark.needs("make soak")
def test_devices_that_differ_go_to_datasets_of_their_own(cluster, tmp_path):
    """Each kind measures all vectors into its own dataset, and a second run finds each of them again."""
    with ray_starts():
        cluster.add(2, "mixed")
    wanted = {
        "measuring": kerncast.Measuring("odd_backends:Mixed", resource="mixed", **QUICK),
        "cluster": kerncast.Cluster("ray", cluster.address), "extent": kerncast.Extent(resume=True), "out": tmp_path / "d",
        **SWEEP,
    }  # fmt: skip
    first = kerncast.collect(TRITON, **wanted)
    (second,) = first.collected.beside
    assert not first.collected.summary.lost
    assert not second.summary.lost
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "d-h100"]
    assert [Dataset.open(path).read()["device"].unique().to_list() for path in (first.path, second.summary.path)] == [
        ["a100"], ["h100"],
    ]  # fmt: skip
    assert first.rows == second.vectors == second.summary.measured > 100
    again = kerncast.collect(TRITON, **wanted).collected
    assert [(each.summary.path, each.summary.measured) for each in (again, *again.beside)] == [
        (tmp_path / "d", 0), (tmp_path / "d-h100", 0),
    ]  # fmt: skip


@pytest.mark.needs("make soak")
def test_a_driver_that_is_killed_continues_from_its_journal(cluster, faults, tmp_path):
    """The same command measures what has no row yet; the keepers of the killed one are gone."""
    with ray_starts():
        cluster.add(2, "resumed")
    out, journal = tmp_path / "d", tmp_path / "d" / "journal.jsonl"
    kerncast.sweep(TRITON, device="a100", out=tmp_path / "vectors", **SWEEP)
    command = [
        sys.executable, "-m", "kerncast.app.cli", "collect", tmp_path / "vectors", "--backend", FAULTY,
        "--on", "ray", "--address", cluster.address, "--resource", "resumed", "--out", out, "--json", "--chunk-size", "4",
        "--samples", "3", "--warmup", "0s",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 60, PATIENCE)
    process.kill()
    process.wait()
    kept = journal.read_bytes().count(b"\n") - 2
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["already_there"] >= kept > 50
    assert said["already_there"] + said["measured"] == len(faults)
    assert_all_measured(Dataset.open(out).read(), faults)
