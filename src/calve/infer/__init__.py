"""Determines the columns of a source: from a sample of its records, from the schemas of its files, or of a registry.

    files, topic ──► sample ──► value_types, schemas ──► columns ──► INFER stores them
                        │                                  │
                        └──► envelope, key, order ──► guesses ──► `calve init` writes them down, to be looked at

No JVM is started. Inferred columns convert every record of the sample, by the rules of `records.strict`: `value_types`
chooses a type only if its own converter takes every value. What the sample does not show is not known: columns are
nullable, whole numbers are BIGINT, and what has several types is a STRING.
"""
