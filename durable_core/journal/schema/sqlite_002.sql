-- What maps and waits write, and what pruning leaves. The large column is the last: to reach one behind it SQLite
-- would read all of its pages.

CREATE TABLE segments (                 -- outcomes of many map items, written together
  run_id TEXT NOT NULL, step_id TEXT NOT NULL, chunk INTEGER NOT NULL, seq INTEGER NOT NULL,
  attempt_id TEXT NOT NULL, fence INTEGER NOT NULL, chunk_fence INTEGER NOT NULL,
  items INTEGER NOT NULL,               -- 0 claims the chunk
  succeeded INTEGER NOT NULL, failed INTEGER NOT NULL,   -- of the chunk, up to here
  codec TEXT, size INTEGER, output_hash TEXT,
  refs TEXT,                            -- JSON
  written_at TEXT NOT NULL,
  data BLOB,
  PRIMARY KEY (run_id, step_id, chunk, seq));

CREATE TABLE events (                   -- what was sent to a run; kept until it is pruned
  run_id TEXT NOT NULL, name TEXT NOT NULL, seq INTEGER NOT NULL,
  event_id TEXT NOT NULL, fence INTEGER NOT NULL,
  ref TEXT, codec TEXT, size INTEGER, output_hash TEXT,
  sent_at TEXT NOT NULL, taken_by TEXT,
  data BLOB,
  PRIMARY KEY (run_id, name, seq));

ALTER TABLE runs ADD COLUMN expires_at_s INTEGER;   -- of a tombstone

CREATE INDEX runs_by_due ON runs (due_at_ms, run_id) WHERE status IN ('PENDING', 'RUNNING', 'SUSPENDED');
CREATE INDEX runs_by_burial ON runs (updated_at, run_id) WHERE status = 'TOMBSTONE' AND expires_at_s IS NULL;
CREATE INDEX runs_by_end ON runs (expires_at_s) WHERE status = 'TOMBSTONE' AND expires_at_s IS NOT NULL;
