"""The monthly report and allocations: inputs, provenance, the model of the report and its builder.

What must not live here: rendering, SQL, a clock.
A new column is a field of a row in model, filled in builder, and shown by render.
Where a number comes from, and how sure it is, is in provenance.
Begin at model.
"""
