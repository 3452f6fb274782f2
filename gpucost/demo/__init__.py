"""The whole stack on one machine: simulated exporters, Prometheus, Alertmanager, gpucost and a chat room.

What may live here: the demo's clock, what its exporters say, the processes it starts, its chat room, and the
settings it gives gpucost. What must not: anything that a real installation needs.

    clock        a simulated cluster that stands around any instant, and the instants of its history
    collector    what the queue collector says of it: the real collector over simulated objects
    gpu_counts   what GPUs had counted by an instant, as integers
    gpu_boards   GPUs and instances, and what an exporter sees of them
    gpu_pages    what the GPU exporters say: the real families over those counts
    incident     an idle allocation that begins and ends on command
    exporters    all pages at one instant, with the labels of their targets
    processes    programs: found, started, waited for, ended
    chat         the room: what a bot of Slack's posts, and a page that shows it
    stack        all of it together
    full         ``gpucost demo --full``: the stack with ``gpucost serve`` on it
    ledger       a ledger of the simulated past
    backfill     pages with their times -> OpenMetrics text for promtool
"""
