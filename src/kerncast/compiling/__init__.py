"""A model as C in memory: lowered, written, compiled, bound; and an interpreter that answers the same without a compiler."""
