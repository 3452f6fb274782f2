"""A cluster's objects in files, and back, without what is private: ``gpucost state dump`` and ``--from``.

``allowlist*`` and ``scrub`` say, kind by kind, which fields stay; ``dump_files`` reads what strangers wrote,
within limits. What must not live here: parsing of objects (``gpucost.kube.parse``) or of YAML
(``parse.yaml_documents``). Begin with ``dump``; a field that a parser newly reads must be allowed here too.
"""
