"""The answer of a replay: what a change would have done, beside what the replay without it says.

Begin at ``scenario_figures.replay_report``, which makes the model of ``scenario_answer``. ``run_views`` are
runs and sums over time, ``scenario_money`` who pays for them; ``terminal_replay`` and ``timeline_chart`` show
an answer. What must not: play anything, I/O, clocks.
"""
