"""Turns statements and definitions into checked specifications; runs nothing and stores nothing.

    statement ──► options (declared, typed, bounded) ──► connection / source / sink specification
                        ▲                                             ▲
                 plan/catalogue.py                           definitions: the objects that names refer to

Errors point at the place in the statement. Messages never contain the value of an option that may be a secret.
"""
