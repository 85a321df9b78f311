"""Requests to the toy op, good and bad, with the answers: tests ask them as they stand, fuzzers begin with them."""

import json

from query_toy import HERE

CORPUS = json.loads((HERE.parent / "answering" / "corpus.json").read_text(encoding="utf-8"))


def text_of(entry):
    """A text of the corpus: as it stands, as bytes that are not UTF-8, or as parts that are repeated."""
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    return entry["text"] if "text" in entry else "".join(part * times for part, times in entry["parts"])


# Texts that the reader in Python answers too, alike (tests/querying).
NOT_JSON = {entry["name"]: (text_of(entry), entry["position"], entry["message"]) for entry in CORPUS["not_json"]}
M_RULE = "M must be a whole number from 1 to 9223372036854775807"
REFUSED = {
    **NOT_JSON,
    # JSON, but not a request
    "number": ("5", 0, "a request must be an object of problem parameters, got 5"),
    "unknown key": ('{"M": 1, "Q": 2}', 9, '"Q": known keys are M, case, dtype, größe, tf32, mask, tier, or problem and tier'),
    "part of a key": ('{"": 1}', 1, 'unknown key ""'),
    "longer key": ('{"M\\u0000": 1}', 1, 'unknown key "M\\u0000"'),
    "huge key": ('{"' + "ä" * 9999 + '": 1}', 1, 'unknown key "' + "ä" * 20 + "...: known"),
    "twice": ('{"M": 1, "\\u004d": 1}', 9, '"\\u004d" is given twice: give it once'),
    "tier twice": ('{"tier": "full", "tier": "full"}', 17, '"tier" is given twice'),
    "problem twice": ('{"problem": {}, "problem": {}}', 16, '"problem" is given twice'),
    "beside": ('{"M": 1, "problem": {"M": 1}}', 20, "parameters must not be given next to an object problem"),
    "problem no object": ('{"problem": [1]}', 12, "problem must be an object of problem parameters, got [1]"),
    "tier inside": ('{"problem": {"tier": "full"}}', 13, 'unknown key "tier"'),
    "unknown tier": ('{"M": 1, "tier": "best"}', 17, 'tier must be one of tree, portfolio, full, got "best"'),
    "tier memo": ('{"M": 1, "tier": "memo"}', 17, "tier must be one of tree"),
    "tier null": ('{"M": 1, "tier": null}', 17, "tier must be one of"),
    "string for number": ('{"M": "128"}', 6, f'{M_RULE}, from 2^53 on in digits alone, got "128"'),
    "null for number": ('{"M": null}', 6, M_RULE),
    "object for number": ('{"M": {"a": [1, "}"]}, "tf32": true}', 6, 'got {"a": [1, "}"]}'),
    "fraction": ('{"M": 2.5}', 6, f"{M_RULE}, from 2^53 on in digits alone, got 2.5"),
    "small exponent": ('{"M": 1000e-4}', 6, "got 1000e-4"),
    "2^53 by exponent": ('{"M": 9007199254740992.0}', 6, "from 2^53 on in digits alone, got 9007199254740992.0"),
    "huge exponent": ('{"M": 1e99999999999999999999999}', 6, "got 1e99999999999999999999999"),
    "2^63": ('{"M": 9223372036854775808}', 6, "got 9223372036854775808"),
    "-2^63": ('{"größe": -9223372036854775808}', 12, "größe must be a whole number"),
    "2^64 + 1": ('{"M": 18446744073709551617}', 6, "got 18446744073709551617"),
    "1000 digits": ('{"M": ' + "1" * 1000 + "}", 6, "got " + "1" * 40 + "..."),
    "unknown label": ('{"dtype": "fp9"}', 10, 'dtype must be one of fp8, fp16, say "ä"\\, ??=, 😀, got "fp9"'),
    "code for label": ('{"dtype": 4}', 10, "dtype must be one of fp8"),
    "label with more": ('{"dtype": "fp8 "}', 10, 'got "fp8 "'),
    "number for flag": ('{"tf32": 1}', 9, "tf32 must be true or false, got 1"),
    # left to the engine, which says which parameter; where it stands is added here
    "missing": ('  {"tf32": true}', 2, "toy needs M"),
    "missing in problem": ('{"problem": {}}', 12, "toy needs M"),
    "zero": ('{"M": 0}', 6, 'M must be at least 1: "raise" it'),
    "zero by exponent": ('{"M": 0e99999999999999999999999}', 6, "M must be at least 1"),
    "negative": ('{"M": -5}', 6, "M must be at least 1"),
}  # fmt: skip

DECLARED = {
    "short": ({"tensor": {"shape": [2, 3, 5], "dtype": "float16"}}, {"depth": 2, "rows": 3, "M": 5, "dtype": "fp16"}),
    "padded": ({"tensor": {"shape": [5]}}, {"depth": 1, "rows": 1, "M": 5}),
    "foreign": ({"spec": {"layout": {"page": [[{}]], "dtype": 3}, "logical_shape": [5.0]}}, {"dtype": "fp8", "M": 5}),
    "not ASCII": ({"M": 5, "tensor": {"dtype": "ärger"}}, {"dtype": "fp8", "M": 5}),
    "flat": ({"M": 5, "rows": 7}, {"M": 5, "rows": 7}),
    "inside": ({"problem": {"tensor": {"shape": [5]}}, "tier": "full"}, {"M": 5}),
    "present": ({"M": 5, "extra": {"rows": 4}, "scale": {"any": [1]}}, {"extra": True, "rows": 4}),
    "absent": ({"M": 5, "extra": None}, {"extra": False}),
    "nulls": ({"M": 5, "tensor": None, "out": {"dtype": None}, "spec": {"layout": None, "logical_shape": None}}, {"M": 5}),
    "own flag": ({"M": 5, "extra": True}, {"extra": True}),
    "agreeing": ({"tensor": {"shape": [4, 5]}, "extra": {"rows": 4}}, {"rows": 4, "M": 5}),
    "same": ({"M": 5, "out": {"dtype": "float16"}, "dtype": "fp16"}, {"out": "in", "dtype": "fp16"}),
    "not the same": ({"M": 5, "out": {"dtype": "fp8"}, "dtype": "fp16"}, {"out": "fp8", "dtype": "fp16"}),
    "alias": ({"op": "small", "M": 5, "device": "c1", "family": "own"}, {"case": 7, "tf32": True}),
    "device in any case": ({"M": 5, "device": "CarD"}, {"M": 5}),
    "alias agreeing": ({"tf32": True, "op": "small", "M": 5}, {"tf32": True}),
}

DECLARED_REFUSED = {
    "label": ('{"M": 5, "tensor": {"dtype": "fp9"}}', "unsupported", 29, 'dtype must be one of fp8, .*, got "fp9"'),
    "number": ('{"M": 5, "tensor": {"dtype": 4}}', "unsupported", 29, "dtype must be one of"),
    "rank": ('{"tensor": {"shape": [1, 1, 1, 1]}}', "unsupported", 21, "tensor.shape must have at most 3 dimensions, got"),
    "no dimension": ('{"tensor": {"shape": [1, "x"]}}', "bad_input", 25, 'M must be a whole number .*, got "x"'),
    "no list": ('{"tensor": {"shape": 4}}', "bad_input", 21, "tensor.shape must be a list of whole numbers, got 4"),
    "no object": ('{"M": 5, "tensor": [4]}', "bad_input", 19, "tensor must be an object, got"),
    "list for a label": ('{"M": 5, "tensor": {"dtype": [3]}}', "bad_input", 29, "dtype must be"),
    "inner key": ('{"tensor": {"shapes": 4}}', "bad_input", 12, 'unknown key "shapes": known keys are M, .*, software, tier'),
    "contradiction": ('{"rows": 3, "tensor": {"shape": [4, 5]}}', "bad_input", 23, '"shape" contradicts what is given else'),
    "alias": ('{"op": "small", "tf32": false, "M": 5}', "bad_input", 7, '"small" contradicts'),
    "twice": ('{"op": "toy", "op": "toy"}', "bad_input", 14, '"op" is given twice'),
    "object twice": ('{"tensor": {"shape": [5]}, "tensor": {"shape": [5]}}', "bad_input", 27, '"tensor" is given twice'),
    "inner twice": ('{"tensor": {"shape": [5], "shape": [5]}}', "bad_input", 26, '"shape" is given twice'),
    "null": ('{"M": 5, "dtype": null}', "bad_input", 18, "dtype must be"),
    "op": ('{"op": "big", "M": 5}', "unsupported", 7, 'op must be one of toy, small, got "big"'),
    "device": ('{"device": "a100"}', "unsupported", 11, 'device must be one of card, c1, got "a100"'),
    "no device": ('{"device": "c\u0131"}', "unsupported", 11, "device must be one of card, c1, got"),
    "family": ('{"family": 4}', "unsupported", 11, "family must be one of toy/own, own"),
    "op no label": ('{"op": [4]}', "bad_input", 7, "op must be"),
    "software": ('{"software": null}', "bad_input", 13, "software must be the name of a commit"),
}  # fmt: skip
