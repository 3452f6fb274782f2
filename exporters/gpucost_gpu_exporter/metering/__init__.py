"""From looks at the GPUs to counters of time and energy that add up, in integers.

``meter`` adds each look to the ``accounts`` of GPUs and holders; ``gpu_state`` is what it remembers between
two, ``missing_parts`` what could not be read, ``process_owners`` the pod of a process. What must not live
here: NVML (``driver``), the kubelet, metric names' text. Begin with ``meter``.
"""
