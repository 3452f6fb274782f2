"""Pure renderers, one module per service: ``render(message) -> payload``.

They call ``notify.text`` to escape and cut, and do nothing else with text. What must not live here: words
of messages (``notify.compose``) and anything that sends (``notify.sending``). Begin with ``plain``, the
shortest.
"""
