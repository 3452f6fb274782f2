"""Dumps of a cluster's objects in files, without private data: ``gpucost state dump`` and ``--from``.

``allowlist`` and ``scrub`` list, kind by kind, which fields stay; ``dump`` reads files of unknown origin,
within limits. What must not live here: parsing of objects (``gpucost.kube.parse``) or of YAML
(``parse.yaml_documents``). Begin with ``dump``; a field that a parser newly reads must be allowed here too.
"""
