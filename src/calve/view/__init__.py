"""Views over change streams: a SELECT of Spark SQL whose table follows the changes of its input.

    plan = plan_view(spark, [ViewQuery("big", "SELECT id, amount FROM orders WHERE amount > 100")], source, key)
    view = View(spark, plan, state=store)
    changes = view.changes(changes_of(frame, envelope, source_key, before=plan.needs_before), identity)
    ... written, recorded, committed ...
    view.committed(offsets)

                  texts ──► names ──► scope ──► refusals, trace, groups ──► ViewPlan       once
                                        │
    changes of the input ──► rewrite: the plan with a flag per row ──► rows ──► changes    every checkpoint
              │                                                          ▲
              └─► signed ──► aggregate: additions by group ──► totals ───┘

plan        what a view is, as values: ViewInput, ViewQuery, ViewPlan
names       quoted names; which tables a text reads
scope       where names are looked up: a copy of the session, with the input and the views in it
catalyst    Spark's plans from Python, and nothing else does
refusals    what cannot follow changes, and why; trace follows columns from the input up, groups looks at GROUP BY
analysis    `plan_view`: all of these put together
rewrite     a plan in which a row that does not pass is flagged and not lost
rows        changes of row-wise views; signed makes rows that go and rows that come of changes
aggregate   changes of views with GROUP BY; totals keeps what they add up to
run         `View`: a view at work

Static tables are looked up anew for every checkpoint (a folder of files is listed again; a temporary view of the
session is what the user made it). A change of a static table does not touch rows that are written already.

What a key promises: a view with another key than its input (REKEY) must have unique keys at the end of every
checkpoint. Of duplicates inside one checkpoint the sink learns; over checkpoints nobody tells it. Totals need every
change once: a source that repeats changes of earlier checkpoints, or takes its snapshot again, makes them wrong, which
is noticed only where a group would fall below zero rows.
"""
