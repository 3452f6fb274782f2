"""What all commands share: global options, exit codes, output, columns.

What may live here: terminals and streams.
What must not: commands; rich at the top of ``context``, ``exit_codes`` or ``output``.
Begin with ``context.CommandContext``.
``columns`` is the one module here that imports rich at once.
"""
