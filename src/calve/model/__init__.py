"""Values that cross from one stage to the next: frozen, typed, without Spark, Iceberg or Arrow.

    spec        what a sink is: table, key, envelope, policies
    change      names of the columns of a frame of changes
    frontier    logical time: frontiers and batches
    checkpoint  what a micro-batch was, and the records of it
    files       files written for a batch, their manifests, the committable
    progress    how far a sink came, as the table says it; receipts
    health      what a sink says of itself

Nothing here does input or output.
"""
