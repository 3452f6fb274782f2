"""From looks at the GPUs to counters of time and energy that add up, in integers.

``meter`` adds each look to the ``accounts`` of GPUs and holders; ``gpu_state`` is what it remembers between
two, ``missing_parts`` what was not to be had, ``process_owners`` whose a process is. What must not live
here: NVML (``driver``), the kubelet, metric names' text. Begin with ``meter``.
"""
