"""Schema revisions, oldest first. What is released is never edited; a change is a new revision."""
