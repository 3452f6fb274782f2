"""Sealed months: closed months as Parquet files, in a folder or an object store, and reads of them.

What lives here: the tables of the files and their versions (seal_schema), where they lie and how they are
proven (seal_folder), how rows of the database become files (seal_writer) and rows again (seal_restore), sums
over them (sealed_reader).
What must not: who may seal, and when: retention.month_sealing decides, and moves the rows.
It rests on db and on nothing else of the ledger. DuckDB and fsspec are the extra ``lake``. Begin at
seal_schema.
"""
