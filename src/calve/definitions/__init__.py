"""The user's definitions: secrets, connections, sources, views and sinks, by name.

    statement ──► Definition (kind, name, uid, version, statement, what it uses) ──► DefinitionStore (the metastore)
                                                                    secrets' values ──► Vault (mode 0600)

A definition is stored as its canonical SQL, in which secrets appear only by name.
"""
