"""What users of the TTNN op runtime predictor expect. Tables are made up in its CSV layouts; no card is needed."""

from __future__ import annotations

import json
import random

from promises import Work, promise

TTNN = "TTNN op runtime predictor"
COMMIT = "87144607f757092c2c0cc817d12a8942d30fbfc9"
CARD = "a Wormhole card: made-up tables stand in for its times"
EXP = (
    '{"op": "ttnn.exp", "device": "n150", "tensor": {"shape": [1, 1, 512, 1024], "dtype": "bfloat16", '
    '"memory": {"buffer": "L1"}}}'
)


def table() -> str:
    """The CSV layout of `exp`: dimensions, one-hot dtypes and buffers, the time."""
    lines = ["input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat16,float32,input_DRAM,input_L1,kernel_duration"]
    drawn = random.Random(0)
    for _ in range(240):
        height, width = drawn.choice((32, 64, 256, 1024)), 32 * drawn.randint(1, 64)
        wide, l1 = drawn.random() < 0.5, drawn.random() < 0.5
        tiles = height * width / 1024
        time = (900 + tiles * (30 if l1 else 55) * (2 if wide else 1)) * drawn.uniform(1, 1.01)
        lines.append(f"1,1,{height},{width},{int(not wide)},{int(wide)},{int(not l1)},{int(l1)},{time:.0f}")
    return "\n".join(lines) + "\n"


@promise(
    "86-88",
    TTNN,
    "List the models, train `exp` from the public table, train MLPs",
    "`kerncast import ttnn-csv`, `kerncast models`",
)
def exp_trained(work: Work) -> None:
    work.write("exp.csv", table())
    work(f"kerncast import ttnn-csv exp.csv --set func=exp --device wormhole_b0 --software commit={COMMIT} --out exp")
    work("kerncast train exp --folds 3 --trees 60 --out exp_model")
    work("kerncast train exp --kind mlp --hidden 64,64 --folds 2 --epochs 40 --out exp_mlp")
    work("kerncast models add exp_model")
    work("kerncast models", says="wormhole_b0")


@promise(
    "81-83",
    TTNN,
    "Send JSON, get a time, from Python, C and C++, with errors told apart",
    "[Asking in JSON](json-query.md)",
    after=exp_trained,
)
def asked_in_json(work: Work) -> None:
    reply = json.loads(work(f"kerncast predict '{EXP.replace('ttnn.', '')}'"))
    assert reply["status"] == "ok"
    assert reply["time_ns"] > 0
    wrong = {"unsupported": EXP.replace("bfloat16", "uint8"), "bad_input": '{"op": "exp"}', "no_model": '{"op": "gemm"}'}
    for status, text in wrong.items():
        reply = json.loads(work(f"kerncast predict '{text.replace('ttnn.', '')}'", exits=1))
        assert reply["status"] in (status, "out_of_range", "bad_input"), reply
        assert "time_ns" not in reply
    work("kerncast export exp_model --to c --out exp_c")
    work("cmake -S exp_c -B exp_c/build")
    work("cmake --build exp_c/build")
    work("ctest --test-dir exp_c/build")


@promise("84", TTNN, "Use the op names of TTNN as they are", "`kerncast predict ttnn.exp …`", after=exp_trained)
def names_as_written(work: Work) -> None:
    for name in ("ttnn.relu", "ttnn.transformer.concatenate_heads", "ttnn.experimental.create_qkv_heads"):
        work(f"kerncast list op {name}")
    reply = json.loads(work(f"kerncast predict '{EXP}'"))
    assert reply["status"] == "ok", reply


@promise(
    "85", TTNN, "Committed models of `concatenate_heads`, `create_qkv_heads` and `exp`", "`kerncast models`", after=exp_trained
)
def committed_models(work: Work) -> None:
    """On a fresh install, without a store: each dtype that the public tables have."""
    for dtype in ("bf16", "bfp8", "fp32", "uint16", "uint32"):
        found = work.json(
            f"kerncast predict ttnn.exp dim2=512 dim3=1024 dtype={dtype} buffer=l1 --device wormhole_b0 --store empty"
        )
        assert (found["status"], found["basis"]) == ("ok", "model"), found
        assert found["lower_ns"] < found["time_ns"] < found["upper_ns"], found
    work.needs("a Wormhole card for the models of concatenate_heads and create_qkv_heads: no times of these ops are public")


@promise(
    "89", TTNN, "Collect device times with the sweep runner", "`kerncast collect --benchmark tt-metal-sweep`", after=exp_trained
)
def collected_with_device_perf(work: Work) -> None:
    ops = (
        "ttnn.exp",
        "ttnn.transformer.concatenate_heads",
        "ttnn.experimental.create_qkv_heads",
        "ttnn.transformer.paged_scaled_dot_product_attention_decode",
    )
    for number, op in enumerate(ops):
        work(
            f"kerncast sweep {op} --problems published --max-vectors 60 --device wormhole_b0 --format tt-sweep "
            f"--out sweep-{number}"
        )
    work.needs(CARD)


@promise("90", TTNN, "Make a dataset from vectors and results", "`kerncast import tt-sweep`", after=exp_trained)
def vectors_and_results(work: Work) -> None:
    (file,) = (work.folder / "sweep-1" / "vectors_export").glob("*.json")
    vectors = json.loads(file.read_text())
    results = [
        {"input_hash": name, "status": "TestStatus.PASS", "device_perf": {"DEVICE KERNEL DURATION [ns]": 3000 + 7 * place}}
        for suite in vectors.values()
        for place, name in enumerate(suite)
    ]
    work.write(f"sweep-1/results_export/{file.name}", results)
    work("kerncast import tt-sweep sweep-1 --device n150 --software commit=20b59dcd0cbf --out heads")
    work("kerncast train heads --folds 2 --trees 20 --out heads-model")


@promise("91", TTNN, "Train a new model, or continue one", "`kerncast train --base MODEL`", after=exp_trained)
def retrained(work: Work) -> None:
    work("kerncast train exp --base exp_model --trees 10 --out exp_model2")


@promise("92", TTNN, "Regenerate a model with few commands", "`kerncast regenerate ttnn-exp`", after=exp_trained)
def regenerated(work: Work) -> None:
    work("kerncast regenerate ttnn-exp-table --set import.files=exp.csv --set train.folds=2 --store regenerated")
    work("kerncast models --store regenerated", says="wormhole_b0")
    work.needs(CARD)


@promise(
    "93-94",
    TTNN,
    "Know the commit that a model is valid for; install and build",
    "`kerncast predict --strict`",
    after=exp_trained,
)
def tied_to_its_commit(work: Work) -> None:
    asked = EXP.replace("ttnn.", "").replace('"device"', '"software": "commit=0123456789abcdef", "device"')
    assert "warning" in json.loads(work(f"kerncast predict '{asked}'"))
    work(f"kerncast predict '{asked}' --strict", exits=1)
