"""The command line as a client of the API of ``gpucost serve``: the server, the credential, and the requests.

Nothing here opens a ledger. A secret is in a file, or in the environment's name of one; never in an option,
an address, a message. Begin with ``server_target.find_target``, then ``api_client``.
"""
