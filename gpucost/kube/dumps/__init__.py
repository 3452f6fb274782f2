"""A cluster's objects in files, and back, without what is private: ``gpucost state dump`` and ``--from``.

``kept*`` say, kind by kind, which fields stay; ``dump_files`` and ``dump_yaml`` read what strangers wrote.
"""
