"""Pure renderers, one module per service: ``render(message) -> payload``.

What may live here: layout and the limits of each service. What must not: escaping and cutting
(``notify.text`` does both), I/O. Begin with ``plain``.
"""
