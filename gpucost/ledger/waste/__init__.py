"""What became of capacity, window by window: the waste that detectors claim, and how much of it was assessed.

What must not live here: detectors, and findings (stores.findings has them). Stored are the claimed parts of
usage lines; the rest of a line is derived when it is read. It rests on usage and db, and on no other wing.
Begin at waste_reader; waste_writer is the one place that writes.
"""
