"""The command line. What may live here: arguments, terminals, exit codes. What must not: anything that the
service or the API would have to repeat.

Commands import what they need when they run, so that ``gpucost --help`` starts without pandas and SQL.
"""

from gpucost.cli.main import app, main

__all__ = ["app", "main"]
