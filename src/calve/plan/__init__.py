"""Statements and definitions become checked specifications; nothing is run and nothing is stored.

    statement ──► options (typed, bounded, by one table) ──► connection / source / sink specification
                        ▲                                             ▲
                 plan/catalogue.py                           definitions: what the names stand for

Errors point at the place in the statement. No value of an option that may hold a secret is ever part of a message.
"""
