"""Time to answer a list of 10,000 JSON queries, in each form of a request.

    KERNCAST_DATA=/path/to/data python benchmarks/query.py

The model is trained on `ttnn/big_exp_dataset.csv` (github.com/tenstorrent/ttnn-op-runtime-predictor) with the default recipe.
Shapes are drawn at random within its trained range, so shapes rarely repeat and the memo does not help. The time is that of
`Query.answer`, from text to text, with the model loaded. The best of 30 lists counts, because other processes may slow the
machine down; the median is printed too.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from choosing import data_file
from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.answering.query import Query, among
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.models.model import Model
from kerncast.training.train import Recipe, train

QUERIES = 10_000
REPEATS = 30
TARGET_MS = Target(high=50.0)
BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "JSON queries",
    "training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor",
    "Apache-2.0",
)
NAMES = {"short": "in the short form", "serialised": "as TTNN serialises tensors", "flat": "with the op's own parameters"}
Request = dict[str, Any]


def drawn(chance: random.Random) -> tuple[list[int], int, int]:
    """A random shape, with TTNN's numbers for a dtype and a memory."""
    shape = [1, chance.randint(1, 128), 32 * chance.randint(1, 63), 32 * chance.randint(1, 63)]
    return shape, chance.choice((0, 3)), chance.choice((0, 1))


def short(shape: list[int], dtype: int, buffer: int) -> Request:
    """A request in the short form of the documentation."""
    tensor = {"shape": shape, "dtype": {0: "bfloat16", 3: "bfloat8_b"}[dtype], "memory": {"buffer": ("DRAM", "L1")[buffer]}}
    return {"op": "exp", "tensor": tensor, "device": "wormhole_b0"}


def serialised(shape: list[int], dtype: int, buffer: int) -> Request:
    """A request with a tensor as TTNN serialises it, including keys that are not used."""
    memory = {"buffer_type": buffer, "created_with_nd_shard_spec": False, "memory_layout": 0}
    page = {"config": {"index": 1, "value": {"tile": {"face_shape": [16, 16], "num_faces": 4, "tile_shape": [32, 32]}}}}
    layout = {"alignment": {"value": [1, 1, 32, 32]}, "dtype": dtype, "memory_config": memory, "page_config": page}
    spec = {"tensor_spec": {"logical_shape": shape, "tensor_layout": layout}, "storage": {"index": 1, "value": {}}}
    return {"op": "exp", "tensor": spec, "device": "wormhole_b0"}


def flat(shape: list[int], dtype: int, buffer: int) -> Request:
    """A request with the op's own parameters."""
    sizes = {f"dim{i}": size for i, size in enumerate(shape)}
    labels = {"dtype": {0: "bf16", 3: "bfp8"}[dtype], "buffer": ("dram", "l1")[buffer]}
    return {"op": "exp", **sizes, **labels}


def trained(folder: Path) -> Model:
    path = data_file("ttnn", "big_exp_dataset.csv", source="github.com/tenstorrent/ttnn-op-runtime-predictor")
    data = import_files("ttnn-csv", [path], folder / "data", ImportOptions(device="wormhole_b0", values={"func": "exp"}))
    return train(data.path, folder / "model", Recipe(threads=1, folds=2))


def main() -> int:
    given = script_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        query = Query(among([trained(Path(folder))]))
        rows = []
        forms: tuple[Callable[[list[int], int, int], Request], ...] = (short, serialised, flat)
        print(f"{'form':12} {'bytes in':>10} {'bytes out':>10} {'best ms':>8} {'median ms':>10} {'us each':>8}  statuses")
        for form in forms:
            chance = random.Random(0)
            text = json.dumps([form(*drawn(chance)) for _ in range(QUERIES)]).encode()
            reply, spent = query.answer(text), []
            for _ in range(REPEATS):
                start = time.perf_counter()
                reply = query.answer(text)
                spent.append(1e3 * (time.perf_counter() - start))
            found = sorted({answer["status"] for answer in json.loads(reply)})
            assert found == ["ok"], f"answers are {found}, all should be ok"
            text_of = f"{QUERIES:,} queries {NAMES[form.__name__]}, best of {REPEATS} lists"
            note = f"median {statistics.median(spent):.1f} ms"
            rows.append(Row(text_of, min(spent), "ms", TARGET_MS, n=f"{QUERIES:,} queries, {REPEATS} lists", note=note))
            print(
                f"{form.__name__:12} {len(text):10,} {len(reply):10,} {min(spent):8.1f} {statistics.median(spent):10.1f} "
                f"{1e3 * min(spent) / QUERIES:8.2f}  {', '.join(found)}"
            )
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
