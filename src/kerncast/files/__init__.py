"""Files that are written whole or not at all, and who may write them."""
