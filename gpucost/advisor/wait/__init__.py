"""How long a job waits: run times learnt from history, and the queue simulated with them."""
