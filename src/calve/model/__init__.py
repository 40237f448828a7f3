"""Values that cross from one stage to the next: frozen, typed, without Spark, Iceberg or Arrow.

    spec        what a sink is: table, key, envelope, policies
    change      names of the columns of a frame of changes
    frontier    logical time: frontiers and batches
    checkpoint  the identity of a micro-batch, and its records
    files       files written for a batch, their manifests, the committable
    progress    the progress of a sink as the table states it; receipts
    health      the status that a sink reports

Nothing here does I/O.
"""
