"""Views over change streams: a SELECT of Spark SQL whose table follows the changes of its input.

    plan = plan_view(spark, [ViewQuery("big", "SELECT id, amount FROM orders WHERE amount > 100")], source, key)
    view = View(spark, plan, state=store)
    changes = view.changes(changes_of(frame, envelope, source_key, before=plan.needs_before), identity)
    ... written, recorded, committed ...
    view.committed(offsets)

                      queries ──► scope ──► refusals, trace, groups ──► ViewPlan           once
                                    │
    changes of the input ──► rewrite: the plan with a flag per row ──► rows ──► changes    every checkpoint
              │                                                          ▲
              └─► aggregate: additions by group ──► totals ──────────────┘

plan        what a view is, as values: ViewInput, ViewQuery, ViewPlan
scope       resolves names: a copy of the session that contains the input and the views
catalyst    the only module that touches Spark's logical plans
refusals    which queries cannot follow changes, and why; trace follows columns, groups checks GROUP BY
planning    `plan_view`: puts all of these together
rewrite     changes a plan so that rows which do not pass a filter are flagged instead of dropped
rows        changes of row-wise views, as retractions and insertions
aggregate   changes of views with GROUP BY; totals stores their sums
sums        the arithmetic of totals; blocks are their files, totals_tasks what Spark tasks do with many groups
run         `View`: a view in a running sink

Static tables are read again for every checkpoint (a folder of files is listed again; a temporary view of the session is
as the user defined it). A change of a static table does not affect rows that are already written.

A view with another key than its input (REKEY) must have unique keys at the end of every checkpoint. Duplicates within a
checkpoint are detected, duplicates across checkpoints are not. Totals need every change exactly once: a source that
repeats changes of earlier checkpoints, or takes its snapshot again, makes them wrong, which is detected only if a group
would fall below zero rows.
"""
