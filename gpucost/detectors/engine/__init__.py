"""Runs all rules on the facts of a cluster: ``registry`` lists them, ``evaluation`` runs them,
``waste_resolution`` puts every GPU-second into one bucket, ``lifecycle`` keeps a finding's life over many
evaluations. What must not live here: knowledge of one rule by name (but for ``registry``). Nothing below
imports this package. Begin with ``evaluation``. A new detector is more than its row in ``registry``:
CONTRIBUTING.md lists the steps."""
