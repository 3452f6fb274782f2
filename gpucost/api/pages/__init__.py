"""Pages for people, made on the server: what the API answers, as HTML that links from one to the next.

What may live here: routes that answer HTML, templates, their style and script.
What must not: SQL, arithmetic on money, anything that the API or a command could not say as well.
Begin with ``page_layout``; ``month_pages`` is the first page that people see.
The addresses of all pages are in ``gpucost.reports.base.page_addresses``.
"""
