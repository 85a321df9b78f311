"""A model as C in memory: lowered, written, compiled, bound; and an interpreter with the same answers."""
