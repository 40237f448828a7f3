"""One committable becomes one snapshot, exactly once.

    choreography         the order of steps: a checkpoint becomes durable, a window becomes a batch
    committer            the thread that commits batches, closes windows and lets the table be maintained
    run.SinkRun          one run of one sink, over one run_state.RunState:
      ├── claims         boots, claims the table, takes over the predecessor's records
      ├── checkpoints    decides on checkpoints, waits for room, records them
      ├── batches        closes batches; heartbeat, seal
      └── commits        commits the oldest batch, acknowledges it, removes what it no longer needs
    attempt              one claim or one commit; looks up deletes in its snapshot
    journal              run directories in the state location                      (durable)
    belief               decides which progress stated in the table can be trusted  (pure)
    takeover             what a run takes over from the records of its predecessor  (pure)
    windows              when a batch is closed, and where it ends                  (pure)
    backpressure         when reading has to wait; how far the table lags           (pure)
    ports                interfaces to the table, the monitor and everything else a run needs

`tests/simulation` drives this code through random schedules of crashes, lost responses, zombies, rollbacks and foreign
commits.
"""
