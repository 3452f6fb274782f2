"""The command line as a client of the API of ``gpucost serve``: whom it asks, as whom, and what it asks.

Nothing here opens a ledger. A secret is in a file, or in the environment's name of one; never in an option,
an address, a message.
"""
