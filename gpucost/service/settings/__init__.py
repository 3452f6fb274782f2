"""Settings of the service, one module a topic; ``model`` holds the root, and this package exports it.

What may live here: groups, their checks, the loader.
What must not: opening a ledger, a source or a socket.
Begin with ``model.Settings``, then ``loader.load_settings``.
docs/settings.md is generated from these docstrings.
"""
