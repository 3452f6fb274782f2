"""The kubelet's answer to which pod was given which device: its pod-resources API, v1, over a unix socket.

``pod_resources.proto`` holds the messages and fields that are read here and no others; a kubelet sends more,
which protobuf skips. ``pod_resources_pb2`` is generated from it and committed, so that an installation needs
no compiler (``tests/exporters/gpu/test_kubelet_proto.py`` says how, and fails when the two differ).
``client`` asks. What must not live here: the meaning of a device id, and which pods still run: that is
``holders``.
"""
