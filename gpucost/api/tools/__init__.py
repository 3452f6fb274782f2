"""The API as tools of the Model Context Protocol (MCP), for assistants: over HTTP at ``/mcp``, and stdio.

What may live here: which route a tool asks, its parameters and words, and how much of an answer is given.
What must not: numbers of its own, state between calls, writes.
A tool asks the API itself, as its caller, so that tenancy, errors, caches and limits are the API's.

    tool_arguments  what each tool takes: a model each, whose JSON schema clients are shown
    tool_catalog    the tools: names, descriptions with units, and the routes behind them
    tool_answers    an answer short enough for a model's context, and what was left out of it
    api_questions   how the API is asked: in this process, or whatever else is given
    tool_server     the server of the protocol over the catalog; all that needs the package ``mcp``
    tool_route      POST /mcp

Begin with ``tool_catalog``.
"""
