"""The public functions: one file each, named after its verb. `kerncast/__init__.py` lists them; the command line calls them.

Arguments are objects or paths, results are typed values. A result without an `out` is in a temporary folder; `.save(path)`
keeps it.
"""
