"""torch-diode's shape sets as problems: by operation or alone, JSON or msgpack; what cannot be used is counted and said."""

import json

import msgspec
import pytest

import kerncast
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.ops.gemm import gemm
from kerncast.library.ops.reshard import reshard
from kerncast.library.problems import problem_notes, problem_set


def shape(m, n, k, b=1, dtype="float16", **more):
    return {"B": b, "M": m, "N": n, "K": k, "M_dtype": dtype, "K_dtype": dtype, "out_dtype": dtype,
            "out_size": [b, m, n], "out_stride": [m * n, n, 1], **more}  # fmt: skip


SET = {
    "operations": {
        "mm": {"shapes": [shape(8, 16, 32), shape(8, 16, 32, dtype="torch.bfloat16", extra="ignored")]},
        "addmm": {"shapes": [shape(5, 6, 7), json.dumps(shape(9, 6, 7))]},
        "bmm": {"shapes": [shape(8, 16, 32, b=12), shape("s77", 16, 32), shape(8, 0, 32), shape(1, 2, 3, dtype="complex64")]},
        "scaled_mm": {"shapes": [shape(1, 2, 3), shape(4, 5, 6)]},
    }
}
LAYOUT = {"layout": ["rcr"]}


def rows(path, text="", vary=LAYOUT):
    frame = problem_set(gemm, [f"shapeset:{path}{text}"], vary)
    return {(row["M"], row["N"], row["K"], row["batch"], row["dtype"], row["bias"]) for row in frame.iter_rows(named=True)}


@pytest.mark.parametrize(
    "encode", [msgspec.json.encode, msgspec.msgpack.encode, lambda data: b"\xef\xbb\xbf" + json.dumps(data).encode()]
)
def test_both_encodings_give_the_same_problems_and_the_rest_is_counted(tmp_path, encode):
    """B is the batch, addmm has a bias; symbols, empty sizes, foreign dtypes and other operations are left out by name."""
    path = tmp_path / "shapes.json"
    path.write_bytes(encode(SET))
    assert rows(path) == {
        (8, 16, 32, 1, "fp16", None), (8, 16, 32, 1, "bf16", None), (8, 16, 32, 12, "fp16", None),
        (5, 6, 7, 1, "fp16", True), (9, 6, 7, 1, "fp16", True),
    }  # fmt: skip
    assert problem_notes(gemm, ["llm", f"shapeset:{path}"]) == [
        f"shapeset:{path}: 5 of 10 shapes left out: 2 with a size that is unknown or out of range; "
        "1 with a dtype that gemm does not have; 2 of scaled_mm, which is more than a product"
    ]
    assert rows(path, ";op=mm,bmm") == {row for row in rows(path) if row[5] is None}
    assert len(problem_notes(gemm, [f"shapeset:{path};op=mm"])) == 0


def test_a_dtype_may_be_in_an_object(tmp_path):
    """torch-diode's own msgpack files mark a dtype of torch."""
    path = tmp_path / "shapes.msgpack"
    marked = shape(8, 16, 32, dtype={"__torch_dtype__": "bfloat16"})
    path.write_bytes(msgspec.msgpack.encode({"operations": {"mm": {"shapes": [marked], "version": 1}}, "version": 1}))
    assert rows(path) == {(8, 16, 32, 1, "bf16", None)}


def test_a_set_alone_may_say_little(tmp_path):
    """Without dtypes they come from `vary`; without B a product is one; a dtype of some shapes leaves out the others."""
    path = tmp_path / "alone"
    path.write_bytes(msgspec.msgpack.encode({"shapes": [{"M": 2, "N": 3, "K": 4}, {"M": 2, "N": 3, "K": 4, "B": 5}]}))
    assert rows(path, vary={**LAYOUT, "dtype": ["fp32"]}) == {(2, 3, 4, 1, "fp32", None), (2, 3, 4, 5, "fp32", None)}
    with pytest.raises(InvalidValue, match="does not give dtype"):
        rows(path)
    path.write_text(json.dumps({"shapes": [{"M": 2, "N": 3, "K": 4}, shape(5, 6, 7), "not JSON", {"M": 1}, 3]}))
    assert rows(path) == {(5, 6, 7, 1, "fp16", None)}
    assert "3 without M, N and K; 1 without a dtype" in problem_notes(gemm, [f"shapeset:{path}"])[0]


@pytest.mark.parametrize(
    ("data", "text", "why"),
    [
        (b"[1, 2]", "", "a shape set is"),
        (b"{", "", "neither JSON nor msgpack"),
        (b"\xc1nonsense", "", "neither JSON nor msgpack"),
        (b"", "", "neither JSON nor msgpack"),
        (b'{"operations": 3}', "", "`operations` is int"),
        (b'{"operations": {"mm": 3}}', "", "no list of shapes for 'mm'"),
        (b'{"operations": {"mm": {"shapes": []}}}', "", "lists no shape"),
        (json.dumps(SET).encode(), ";op=mmm", "no operation mmm, only mm, addmm, bmm, scaled_mm"),
        (json.dumps(SET).encode(), ";op=scaled_mm", "no shape can be used: 2 of scaled_mm"),
        (json.dumps(SET).encode(), ";mm", "FILE;op=mm,addmm"),
        (json.dumps(SET).encode(), ";op=mm,", "FILE;op=mm,addmm"),
        (b"[" * 100_000, "", "deeply"),
        (b"\x81\xa1a" * 100_000, "", "deeply"),
    ],
)  # fmt: skip
def test_what_is_no_shape_set_is_refused_in_a_sentence(tmp_path, data, text, why):
    """The file, the rule, and what it holds instead."""
    path = tmp_path / "shapes.json"
    path.write_bytes(data)
    with pytest.raises((BadFile, InvalidValue), match=why.replace("[", r"\[")):
        rows(path, text)


def test_only_products_take_shape_sets_and_an_absent_file_is_named(tmp_path):
    """An op without M, N and K says so before it reads anything."""
    with pytest.raises(InvalidValue, match="reshard is none"):
        problem_set(reshard, [f"shapeset:{tmp_path / 'x'}"])
    with pytest.raises(BadFile, match=r"cannot read .*absent\.json"):
        rows(tmp_path / "absent.json")


def test_a_sweep_says_what_it_leaves_out(tmp_path, run):
    """From the command line, as one sentence on stderr; in Python, through `progress`."""
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps(SET))
    code, _, said = run("sweep", "gemm/triton", "--problems", f"shapeset:{path}", "--vary", "layout=rcr", "--device", "a100",
                        "--configs", "sample:2", "--out", tmp_path / "vectors")  # fmt: skip
    assert code == 0
    assert "5 of 10 shapes left out" in said
    found = kerncast.sweep("gemm/triton", problems=f"shapeset:{path};op=bmm", vary=LAYOUT, device="a100", configs="sample:2")
    assert found.problem_count == 1
