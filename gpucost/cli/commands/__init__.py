"""One module a command or group of commands of ``gpucost``.

What may live here: arguments and options; imports of what runs stand inside the command. What must not:
pandas, SQL or FastAPI at the top of a module. Begin with ``reports``. ``gpucost.cli.application`` registers
them, in the order of --help.
"""
