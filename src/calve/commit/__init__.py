"""One committable becomes one snapshot, exactly once.

    run.SinkRun          one run of one sink: fence, records, pending work, attempts
      ├── belief         which statement of progress in the table to believe        (pure)
      ├── adoption       what a run takes over from the records of its predecessor  (pure)
      ├── journal        run directories in the state location                      (durable)
      ├── attempt        one claim or one commit, deletes looked up in its snapshot
      └── ports          what the run needs of a table and of the outside           (interfaces)
    committer.Committer  the thread that calls the run, retries and waits

The rules are those of the protocol's model; `tests/simulation` drives this very code through random schedules of
crashes, lost answers, zombies, rollbacks and foreign commits.
"""
