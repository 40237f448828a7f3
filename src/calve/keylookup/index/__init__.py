"""The key index of a sink: key -> positions of rows in data files, in the state location.

    key columns ──► words.py     keys as rows of 64-bit words, and a hash of each
                       │
    data file ──► build.py ──► entries (hash, file, position, words), sorted by hash
                       │
                    parts.py     pages of entries, with fences and a checksum per page; one object of the store
                       │
                    manifest.py  the parts of the index, and the data files that they cover
                       │
                 key_index.py    look up keys; index new files; publish, merge (`build.py`) and clean up

Data files never change, so the index can lack files but is never wrong about those that it covers. Files that it lacks
are read and indexed. Entries of files that left the table are ignored, and dropped when parts are merged. Everything
that is read is verified; damaged parts count as missing.

One thing depends on the snapshot: a merge drops rows that are deleted in the snapshot that the attempt builds on.
Deleted rows stay deleted in every later snapshot, so a manifest is valid in that snapshot and its descendants. The
summary of the attempt's snapshot names it, and only the newest own ancestor of a head is consulted.

Keys of one column of integers, dates or times are hashed one to one. All other keys are stored with their entries and
compared, so a hash collision never matches two different keys.
"""
