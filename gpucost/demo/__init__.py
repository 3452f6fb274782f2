"""The API over the demo's month, and the whole stack on one machine: simulated exporters, Prometheus,
Alertmanager, gpucost and a chat room.

What may live here: the demo's clock, the pages of its exporters, the processes it starts, its chat room, and
the settings it gives gpucost. What must not: anything that a real installation needs. Begin with
``full.full``, then ``stack.stack``.

    month_app     the API of ``gpucost demo``, with an advisor over its cluster
    full          ``gpucost demo --full``: the stack with ``gpucost serve``, a ledger of the past, and checks
    stack         exporters, Prometheus, Alertmanager and chat room as processes; history as OpenMetrics text
    exporters     all pages at one instant, with the labels of their targets, the queue collector's among them
    gpu_counters  GPUs and instances of nodes, and what they had counted by an instant, as integers
    gpu_pages     pages of the GPU exporters: the real families over those counts
    incident      an idle allocation that begins and ends on command
    chat          the room: messages of a Slack bot, and a page that shows them
"""
