-- Maps that workers share: who works on which part, and where there is one that is being worked on.

CREATE TABLE chunks (                   -- a part of a map's items, once a worker has claimed it
  run_id TEXT NOT NULL, step_id TEXT NOT NULL, chunk INTEGER NOT NULL,
  fence INTEGER NOT NULL,               -- of the map's record when it was claimed
  chunk_fence INTEGER NOT NULL,         -- the takeover number
  status TEXT NOT NULL,                 -- RUNNING | PENDING | COMPLETED | FAILED
  owner TEXT, owner_process TEXT,
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  succeeded INTEGER NOT NULL, failed INTEGER NOT NULL,   -- as of the last time it was left
  gone TEXT, error TEXT,                -- JSON
  updated_at TEXT NOT NULL,
  PRIMARY KEY (run_id, step_id, chunk));

CREATE INDEX checkpoints_by_open_map ON checkpoints (run_id, step_id) WHERE kind = 'map' AND status = 'STARTED';
