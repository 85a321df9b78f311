"""A model as one binary file, and the fixed C runtime that reads it.

The file holds the tables that `native/c99.py` writes as C, and the expressions as bytecode. The runtime is the engine of
`native/c/` over a `kc_model` that is filled from the file, so both give the same answers.
"""
