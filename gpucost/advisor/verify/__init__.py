"""Recorded decisions of a real scheduler: read, replayed through the rules and compared fact by fact; and
written down from what a cluster is seen to do. The schema: docs/advisor-cases.md."""
