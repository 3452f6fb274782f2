"""``gpucost advise``, ``explain`` and ``advisor``: from manifests and dumps to a screen.

What may live here: options, sources of state, screens, recordings of cases.
What must not: rules of schedulers (gpucost.advisor).
Begin with ``advise_command``.
``advice_screen`` writes what ``advice_source`` led to.
"""
