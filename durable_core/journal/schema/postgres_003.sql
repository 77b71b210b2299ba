-- Maps that workers share: who works on which part, and where there is one that is being worked on.

CREATE TABLE durable.chunks (               -- a part of a map's items, once a worker has claimed it
  run_id text COLLATE "C" NOT NULL, step_id text COLLATE "C" NOT NULL, chunk bigint NOT NULL,
  fence bigint NOT NULL,                    -- of the map's record when it was claimed
  chunk_fence bigint NOT NULL,              -- the takeover number
  status text NOT NULL,                     -- RUNNING | PENDING | COMPLETED | FAILED
  owner text, owner_process text,
  lease_until_ms bigint NOT NULL DEFAULT 0,
  succeeded bigint NOT NULL, failed bigint NOT NULL,   -- as of the last time it was left
  gone text, error text,                    -- JSON
  updated_at text NOT NULL,
  PRIMARY KEY (run_id, step_id, chunk));

CREATE INDEX checkpoints_by_open_map ON durable.checkpoints (run_id, step_id) WHERE kind = 'map' AND status = 'STARTED';
