"""The key index of a sink: key -> places of rows in data files, in the state location.

    key columns ──► words.py     keys as rows of 64-bit words, and a hash of each
                       │
    data file ──► build.py ──► entries (hash, file, position, words), sorted by hash
                       │
                    parts.py     pages of entries, with a checksum each and fences; one object of the store
                       │
                    manifest.py  which parts there are, of which data files
                       │
                 key_index.py    look up keys; take in new files; publish, merge (`merge.py`) and tidy

Data files never change, so what the index says of one stays true: it can lack files, never be wrong about those that
it has. Files that it lacks are read and taken in; entries of files that left the table are ignored, and dropped when
parts are merged. Everything that is read is checked; what is damaged or missing counts as not there.

One thing depends on the snapshot: a merge leaves out rows that are deleted in the snapshot that the attempt builds on.
Deleted rows stay deleted in every later snapshot, so a manifest holds in the snapshots after that one. It is named in
the summary of the snapshot that the attempt makes, and only the newest own ancestor of a head is asked for it.

Keys of one column of whole numbers, dates or times are hashed one to one. All others are stored with their entries
and compared: no two keys are ever taken for the same.
"""
