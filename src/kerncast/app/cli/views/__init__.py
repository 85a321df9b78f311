"""How results and progress are shown."""
