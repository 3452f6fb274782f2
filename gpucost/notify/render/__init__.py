"""Pure renderers, one module per service: ``render(message) -> payload``. They call ``notify.text`` to escape
and cut, and do nothing else with text."""
