"""What the advisor answers: types and their first line, their JSON documents, and redaction for readers.

The same for the terminal, the API, chat and the webhook; field names and enum values are part of the API.
Begin at ``answers`` (``Advice``, ``Explanation``, ``LayerResult``); ``redaction`` hides what belongs to
others. ``cycle_results`` is what one cycle of Kueue decides, ``settings`` what of the advisor can be set.
What must not: rules of any scheduler, or imports of other packages of the advisor.
"""
