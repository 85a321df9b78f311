"""The public functions: one file each, named after its verb. `kerncast/__init__.py` lists them; the command line calls them.

Arguments are objects or paths, results are typed values. Whatever has an `out` lives in a temporary folder without one, until
`.save(path)`.
"""
