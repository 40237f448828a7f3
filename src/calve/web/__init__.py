"""The page that shows sinks: read-only, over HTTP. It needs the extra `web`.

    status files ─┐
    definitions ──┼──► home.py: one state ──► app.py: /, /api, /metrics, /healthz
    tables.py ────┘                      └──► events.py: /events, once a second for all clients

It shows and decides nothing. What it asks of a catalog is bounded (`tables.py`), and so is what it pushes: nothing is
computed while nobody listens.
"""
