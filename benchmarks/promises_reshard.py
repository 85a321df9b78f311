"""What users of the reshard sweeps and models on Wormhole cards expect. A small program stands in for tt-metal's runner."""

from __future__ import annotations

import csv
import json
from typing import Any

from promises import Work, promise

MLPS, LINES = "Reshard MLPs", "Reshard sweeps and lines"
SHAPE = '"height_tiles": 56, "width_tiles": 56'
CARD = "a Wormhole card: a program that writes the runner's files stands in for it"
# What the runner of the published models does, in a few lines: vectors in, results joined by hash out. The time is a line in
# the number of tiles, another for each strategy of the input.
RUNNER = """
import hashlib, json, re, sys, time
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
hang, PERF = Path("hang"), "DEVICE KERNEL DURATION [ns]"
vectors = json.loads(Path(given["--read-file"]).read_text())
results = []
for suite in vectors.values():
    for key, vector in suite.items():
        height, width = eval(vector["shape"])[2:]
        tiles = height * width // 1024
        if hang.exists() and tiles % 7 == 3:
            hang.rename("hung")
            time.sleep(3600)
        slope = {"BLOCK": 36.5, "WIDTH": 21.0, "HEIGHT": 28.0}[vector["input_shard_strategy"].rpartition(".")[2]]
        noise = int(hashlib.sha256(key.encode()).hexdigest()[:4], 16) / 65536
        mean = 1500 + slope * tiles * (1 + 0.01 * noise)
        room = tiles < 12000
        results.append({
            "vector_id": key, "input_hash": key, "sweep_name": vector["sweep_name"], "suite_name": "kerncast",
            "status": "TestStatus.PASS" if room else "TestStatus.FAIL_L1_OUT_OF_MEM",
            "exception": None if room else "Out of Memory: not enough space in L1", "timestamp": "2026-01-05_10-00-00",
            "device_perf": {PERF: mean, PERF + "_std": 5.0, "runs": 10} if room else None,
        })
Path(given["--result-file"]).write_text(json.dumps(results))
"""


@promise(
    "11-17",
    LINES,
    "Generate the sweep's vectors as files: valid shapes only, large suites thinned out, chosen by grid",
    "`kerncast sweep reshard/single --problems published --format tt-sweep`",
)
def vectors_written(work: Work) -> None:
    work("kerncast sweep reshard/single --problems published -x 1 -y 7 --max-vectors 1500 --device wormhole_b0 "
         "--format tt-sweep --out vectors")  # fmt: skip
    files = sorted((work.folder / "vectors" / "vectors_export").glob("*/*.json"))
    assert {file.parent.name for file in files} == {"1x7", "1x8"}
    assert all(file.name.startswith(f"reshard-{file.parent.name}-") for file in files)
    for file in files:
        for suite in json.loads(file.read_text()).values():
            assert all(vector["validity"] == "VectorValidity.VALID" for vector in suite.values())


@promise(
    "19-24",
    LINES,
    "Reset a card that hangs and go on, keep failures, use several cards, resume",
    "`kerncast collect --benchmark tt-metal-reshard`",
    after=vectors_written,
)
def sweep_run(work: Work) -> None:
    work.write("tt/tests/sweep_framework/sweeps_runner.py", RUNNER)
    work.write("tt/hang", "")
    work("git init -q tt")
    work("git -C tt -c user.name=made-up -c user.email=made-up@localhost commit -q --allow-empty -m made-up")
    work(
        "kerncast sweep reshard/single --problems published -x 1 -y 7 --max-vectors 100 --device wormhole_b0 --format tt-sweep "
        "--out few"
    )
    command = (
        "kerncast collect few --benchmark tt-metal-reshard --set tt_metal=tt --devices 0,1 "
        "--samples 1 --reset-command true --timeout 4s --out data"
    )
    work(command)
    assert (work.folder / "tt" / "hung").exists()
    work(f"{command} --resume")
    rows = work.python("import kerncast as kc\nprint(kc.Dataset.open('data').read().height)")
    assert int(rows) == 100, rows
    work.needs(CARD)


@promise(
    "18",
    LINES,
    "Record mean, deviation and number of ten runs",
    "columns of [a dataset](tables.md#what-a-dataset-holds)",
    after=vectors_written,
)
def deviation_kept(work: Work) -> None:
    work.write("runner.py", RUNNER)
    for file in sorted((work.folder / "vectors" / "vectors_export").glob("*/*.json")):
        result = f"vectors/results_export_batch/{file.parent.name}/{file.name}"
        work.write(result, "")
        work(f"python runner.py --read-file {file} --result-file {result}")
    work("kerncast import tt-sweep vectors --device wormhole_b0 --software commit=20b59dcd0c --out imported", exits=0)
    told = work.python(
        "import kerncast as kc, polars as pl\n"
        "rows = kc.Dataset.open('imported').read().filter(pl.col('status') == 'ok')\n"
        "print(rows['time_ns_std'].unique().to_list(), rows['samples'].unique().to_list())"
    )
    assert told.split() == ["[5.0]", "[10]"], told


@promise(
    "25",
    LINES,
    "Read and write the runner's result folders",
    "`kerncast import tt-sweep`, `kerncast export --to tt-sweep`",
    after=vectors_written,
)
def batches_written(work: Work) -> None:
    work("kerncast export imported --to tt-sweep --out again")
    work("kerncast import tt-sweep again --device wormhole_b0 --out imported-again")


@promise(
    "26-28",
    LINES,
    "Fit a line to each group, with R², RRMSE and RMSRE as CSV",
    "`kerncast train --kind linear`, `kerncast export --to csv`",
    after=vectors_written,
)
def lines_fitted(work: Work) -> None:
    work("kerncast train imported --kind linear --no-folds --out lines")
    work("kerncast export lines --to csv --out lines.csv")
    rows = list(csv.DictReader((work.folder / "lines.csv").open()))
    assert len(rows) > 50
    assert {"slope_ns", "intercept_ns", "r2", "rrmse", "rmsre"} <= set(rows[0])


@promise(
    "1", MLPS, "Ask with both grids and the number of tiles", "`kerncast predict reshard … tiles=1024`", after=vectors_written
)
def asked_by_tiles(work: Work) -> None:
    reply = _reshard(work, "lines", "width", "height", '"tiles": 3136')
    assert reply["status"] == "ok", reply


@promise("2", MLPS, "Get nanoseconds", "`kerncast predict reshard …`", after=vectors_written)
def in_nanoseconds(work: Work) -> None:
    reply = _reshard(work, "lines", "width", "height", SHAPE)
    assert 50_000 < reply["time_ns"] < 90_000, reply


@promise(
    "4-5",
    MLPS,
    "Train the published network: scaler, layers of 100 and 50 units, Adam, batches, epochs",
    "`kerncast train --kind mlp --hidden 100,50`",
    after=vectors_written,
)
def mlps_trained(work: Work) -> None:
    for source, target in (("width", "height"), ("block", "width")):
        work(f"kerncast train imported --where in_strategy={source} --where out_strategy={target} --kind mlp --hidden 100,50 "
             f"--epochs 60 --batch-size 256 --lr 0.001 --folds 2 --out {source}-{target}")  # fmt: skip


@promise("6", MLPS, "Reach a good fit for BLOCK to WIDTH", "`kerncast evaluate MODEL DATA`", after=vectors_written)
def block_to_width(work: Work) -> None:
    found = work.json(
        "kerncast evaluate block-width imported --where in_strategy=block --where out_strategy=width --split problem"
    )
    assert found["overall"]["r2_log"]["value"] > 0.9, found["overall"]


@promise(
    "3",
    MLPS,
    "Keep a model for each pair of strategies and find the one that fits",
    "`kerncast models find reshard in_strategy=… out_strategy=…`",
    after=vectors_written,
)
def found_by_coverage(work: Work) -> None:
    work("kerncast models add width-height --name WIDTH_ROW_MAJOR_HEIGHT_ROW_MAJOR")
    work("kerncast models add block-width --name BLOCK_ROW_MAJOR_WIDTH_ROW_MAJOR")
    for source, target in (("width", "height"), ("block", "width")):
        reply = _reshard(work, "", source, target, SHAPE)
        assert reply["status"] == "ok", reply
        assert source.upper() in reply["entry"], reply


@promise("7", MLPS, "Run the models in C++", "`kerncast export MODEL --to c`", after=vectors_written)
def mlp_in_cpp(work: Work) -> None:
    work("kerncast export width-height --to c --out cpp")
    work("cmake -S cpp -B cpp/build -DCMAKE_BUILD_TYPE=Release")
    work("cmake --build cpp/build")
    work("ctest --test-dir cpp/build")


@promise(
    "8",
    MLPS,
    "Write weights as CSV and read them back",
    "`kerncast export --to csv`, `kerncast train --weights`",
    after=vectors_written,
)
def weights_as_csv(work: Work) -> None:
    work("kerncast export width-height --to csv --out weights")
    work("kerncast train imported --where in_strategy=width --where out_strategy=height --weights weights --out from-weights")
    replies = [_reshard(work, model, "width", "height", SHAPE)["time_ns"] for model in ("width-height", "from-weights")]
    assert replies[0] == replies[1], replies


@promise("9", MLPS, "Seven trained models, with their R²", "`kerncast models`", after=vectors_written)
def seven_models(work: Work) -> None:
    """On a fresh install, without a store: each of the seven pairs of strategies has a model and its R²."""
    pairs = {("block", "block"), ("block", "width"), ("block", "height"), ("width", "block"), ("width", "height"),
             ("height", "block"), ("height", "width")}  # fmt: skip
    cards = {}
    for source, target in sorted(pairs):
        found = work.json(
            f"kerncast predict ttnn.reshard in_strategy={source} out_strategy={target} in_x=2 in_y=4 out_x=8 out_y=1 "
            "height_tiles=64 width_tiles=64 --device wormhole_b0 --store empty"
        )
        assert (found["status"], found["basis"]) == ("ok", "model"), found
        assert found["lower_ns"] < found["time_ns"] < found["upper_ns"], found
        model = found["model"].removeprefix("shipped/")
        cards[model] = work.python(
            f"from kerncast.models.store.entry import folder\nprint((folder() / '{model}' / 'MODEL_CARD.md').read_text())"
        )
    lines = [line for card in cards.values() for line in card.splitlines() if line.startswith("| ")]
    listed = [line.split(" | ") for line in lines if line.count("|") == 7]
    judged = {(line[0].strip("| "), line[1]): float(line[3]) for line in listed if line[1] in ("block", "width", "height")}
    assert set(judged) == pairs, judged
    assert min(judged.values()) > 0.95, judged
    refused = work.json("kerncast predict ttnn.reshard in_strategy=width out_strategy=width in_x=2 in_y=4 out_x=8 out_y=1 "
                        "height_tiles=64 width_tiles=64 --device wormhole_b0 --store empty", exits=1)  # fmt: skip
    assert refused["basis"] != "model", refused
    work("kerncast models", says="reshard_block-wormhole")


@promise("10", MLPS, "Get the data", "`kerncast export DATA --to csv`", after=vectors_written)
def data_obtainable(work: Work) -> None:
    work("kerncast inspect imported")
    rows = int(work.python("import kerncast as kc\nprint(kc.Dataset.open('imported').read().height)"))
    work("kerncast export imported --to csv --out imported.csv")
    with (work.folder / "imported.csv").open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == rows, (len(written), rows)
    assert {"status", "time_ns"} <= set(written[0]), written[0]


def _reshard(work: Work, model: str, source: str, target: str, size: str) -> dict[str, Any]:
    request = (
        f'{{"op": "ttnn.reshard", "device": "wormhole_b0", {size}, "in_x": 1, "in_y": 7, "out_x": 2, "out_y": 4, '
        f'"in_strategy": "{source}", "out_strategy": "{target}", "dtype": "bf16"}}'
    )
    chosen = f" --model {model}" if model else ""
    return dict(json.loads(work(f"kerncast predict '{request}'{chosen}")))
