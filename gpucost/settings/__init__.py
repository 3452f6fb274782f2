"""What every gpucost process shares: settings and their documentation, the log, certificates of listeners.

What lives here: how settings are read (``environment``, ``secret_files``) and what they are made of
(``types``), the log (``logs``), and certificates of listeners (``tls``). What must not: settings themselves;
they are with the process they belong to. Begin at types.
"""
