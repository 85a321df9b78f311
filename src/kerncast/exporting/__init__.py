"""From a model to files that other programs use: C99 with a C++ header, and JSON."""
