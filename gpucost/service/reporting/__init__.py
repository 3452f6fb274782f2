"""Reports over one ledger, made once for all requests at the same time.

What may live here: the report service, its cache, formats, reports of findings. What must not: layouts
(gpucost.reports), HTTP, SQL. Begin with ``report_service.ReportService``. ``rendering`` turns an answer into
bytes.
"""
