-- Rows are far larger than a twentieth of a page, so these are rowid tables: a WITHOUT ROWID table would keep whole
-- rows in its inner pages.

CREATE TABLE runs (                     -- one row per run: who drives it, what went in, what came out
  run_id TEXT NOT NULL PRIMARY KEY,
  workflow TEXT NOT NULL,
  fingerprint TEXT,
  input_hash TEXT NOT NULL,
  input_data_hash TEXT, input_data BLOB, input_ref TEXT, input_codec TEXT, input_size INTEGER,
  status TEXT NOT NULL,                 -- PENDING | RUNNING | SUSPENDED | COMPLETED | FAILED | CANCELLED | PRUNING | TOMBSTONE
  created_by TEXT, owner TEXT, owner_process TEXT,
  fence INTEGER NOT NULL, base_fence INTEGER NOT NULL,
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  due_at_ms INTEGER NOT NULL DEFAULT 0,
  wake_count INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  gone TEXT,                            -- JSON
  output_hash TEXT, output_data BLOB, output_ref TEXT, output_codec TEXT, output_size INTEGER,
  error TEXT, counts TEXT,              -- JSON
  session_id TEXT, forked_from TEXT,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL, ended_at TEXT);

CREATE INDEX runs_by_creation ON runs (created_at, run_id);
CREATE INDEX runs_by_status ON runs (status, created_at, run_id);

CREATE TABLE checkpoints (              -- one row per step: the write-ahead log
  run_id TEXT NOT NULL, step_id TEXT NOT NULL, step_index INTEGER NOT NULL,
  status TEXT NOT NULL,                 -- STARTED | COMMITTED | SKIPPED | FAILED
  input_hash TEXT, output_hash TEXT, output_data BLOB, output_ref TEXT, codec TEXT,
  started_at TEXT, committed_at TEXT,   -- RFC 3339, UTC, milliseconds
  idempotency_key TEXT NOT NULL,
  attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, attempt_id TEXT NOT NULL, fence INTEGER NOT NULL,
  kind TEXT NOT NULL DEFAULT 'step',    -- step | map | sleep | event
  output_size INTEGER, error TEXT,
  detail TEXT, attempts TEXT,           -- JSON
  PRIMARY KEY (run_id, step_id));
