-- Every text that is a key or is sorted by has the collation "C": pages follow the order of its bytes, on every
-- server. `durable.` stands for the schema that the store URL names.

CREATE TABLE durable.runs (                 -- one row per run: who drives it, what went in, what came out
  run_id text COLLATE "C" NOT NULL PRIMARY KEY,
  workflow text COLLATE "C" NOT NULL,
  fingerprint text,
  input_hash text NOT NULL,
  input_data_hash text, input_data bytea, input_ref text, input_codec text, input_size bigint,
  status text COLLATE "C" NOT NULL,         -- PENDING | RUNNING | SUSPENDED | COMPLETED | FAILED | CANCELLED | PRUNING | TOMBSTONE
  created_by text, owner text, owner_process text,
  fence bigint NOT NULL, base_fence bigint NOT NULL,
  lease_until_ms bigint NOT NULL DEFAULT 0,
  due_at_ms bigint NOT NULL DEFAULT 0,
  wake_count bigint NOT NULL DEFAULT 0,
  crashes bigint NOT NULL DEFAULT 0,
  gone text,                                -- JSON
  output_hash text, output_data bytea, output_ref text, output_codec text, output_size bigint,
  error text, counts text,                  -- JSON
  session_id text, forked_from text,
  expires_at_s bigint,                      -- of a tombstone
  created_at text COLLATE "C" NOT NULL, updated_at text COLLATE "C" NOT NULL, ended_at text);

CREATE INDEX runs_by_creation ON durable.runs (created_at, run_id);
CREATE INDEX runs_by_status ON durable.runs (status, created_at, run_id);
CREATE INDEX runs_by_due ON durable.runs (due_at_ms, run_id) WHERE status IN ('PENDING', 'RUNNING', 'SUSPENDED');

CREATE INDEX runs_by_burial ON durable.runs (updated_at, run_id) WHERE status = 'TOMBSTONE' AND expires_at_s IS NULL;
CREATE INDEX runs_by_end ON durable.runs (expires_at_s) WHERE status = 'TOMBSTONE' AND expires_at_s IS NOT NULL;

CREATE TABLE durable.checkpoints (          -- one row per step: the write-ahead log
  run_id text COLLATE "C" NOT NULL, step_id text COLLATE "C" NOT NULL, step_index bigint NOT NULL,
  status text NOT NULL,                     -- STARTED | COMMITTED | SKIPPED | FAILED
  input_hash text, output_hash text, output_data bytea, output_ref text, codec text,
  started_at text, committed_at text,       -- RFC 3339, UTC, milliseconds
  idempotency_key text NOT NULL,
  attempt bigint NOT NULL, crashes bigint NOT NULL, attempt_id text NOT NULL, fence bigint NOT NULL,
  kind text NOT NULL DEFAULT 'step',        -- step | map | sleep | event
  output_size bigint, error text,
  detail text, attempts text,               -- JSON
  PRIMARY KEY (run_id, step_id));

CREATE TABLE durable.segments (             -- outcomes of many map items, written together
  run_id text COLLATE "C" NOT NULL, step_id text COLLATE "C" NOT NULL, chunk bigint NOT NULL, seq bigint NOT NULL,
  attempt_id text NOT NULL, fence bigint NOT NULL, chunk_fence bigint NOT NULL,
  items bigint NOT NULL,                    -- 0 claims the chunk
  succeeded bigint NOT NULL, failed bigint NOT NULL,   -- of the chunk, up to here
  data bytea, codec text, size bigint, output_hash text,
  refs text,                                -- JSON
  written_at text NOT NULL,
  PRIMARY KEY (run_id, step_id, chunk, seq));

CREATE TABLE durable.events (               -- what was sent to a run; kept until it is pruned
  run_id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, seq bigint NOT NULL,
  event_id text NOT NULL, fence bigint NOT NULL,
  data bytea, ref text, codec text, size bigint, output_hash text,
  sent_at text NOT NULL, taken_by text,
  PRIMARY KEY (run_id, name, seq));

CREATE TABLE durable.blobs (                -- outputs that are too large for a row, whole
  ref text COLLATE "C" NOT NULL PRIMARY KEY,
  size bigint NOT NULL,
  stored_at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE TABLE durable.blob_parts (           -- and their bytes, in parts that fit into memory many times
  ref text COLLATE "C" NOT NULL REFERENCES durable.blobs ON DELETE CASCADE,
  part bigint NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (ref, part));

-- What is large is compressed already: the server needn't try.
ALTER TABLE durable.runs ALTER COLUMN input_data SET STORAGE EXTERNAL, ALTER COLUMN output_data SET STORAGE EXTERNAL;
ALTER TABLE durable.checkpoints ALTER COLUMN output_data SET STORAGE EXTERNAL;
ALTER TABLE durable.segments ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE durable.events ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE durable.blob_parts ALTER COLUMN data SET STORAGE EXTERNAL;
