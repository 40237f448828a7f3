"""One committable becomes one snapshot, exactly once.

    run.SinkRun          one run of one sink: fence, records, pending work, attempts
      ├── belief         decides which progress stated in the table can be trusted  (pure)
      ├── takeover       what a run takes over from the records of its predecessor  (pure)
      ├── windows        when a batch is closed, and where it ends                  (pure)
      ├── backpressure   when reading has to wait; how far the table lags           (pure)
      ├── journal        run directories in the state location                      (durable)
      ├── attempt        one claim or one commit; looks up deletes in its snapshot
      └── ports          interfaces to the table, the monitor and everything else a run needs
    committer.Committer  the thread that calls the run, retries and waits

`tests/simulation` drives this code through random schedules of crashes, lost responses, zombies, rollbacks and foreign
commits.
"""
