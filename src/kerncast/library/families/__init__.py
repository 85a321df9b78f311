"""Built-in kernel families, one file each: config space, constraints, features."""
