-- Checkpoints of agents.

CREATE TABLE durable.agent_checkpoints (
  id text COLLATE "C" NOT NULL PRIMARY KEY,
  session_id text COLLATE "C" NOT NULL, agent_id text COLLATE "C" NOT NULL, step_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,                      -- place in the session, from 1
  format text NOT NULL,                     -- json | json+gzip
  size_bytes bigint NOT NULL, state_hash text NOT NULL,   -- of the JSON
  created_at bigint NOT NULL,               -- milliseconds since the epoch
  metadata text,                            -- JSON
  state_ref text,                           -- of the blob, when the state isn't here
  state_blob text                           -- JSON, or base64 of its gzip
);

CREATE UNIQUE INDEX agent_checkpoints_by_session ON durable.agent_checkpoints (session_id, seq);
CREATE INDEX agent_checkpoints_by_agent ON durable.agent_checkpoints (session_id, agent_id, seq);
CREATE INDEX agent_checkpoints_by_step ON durable.agent_checkpoints (session_id, step_id, seq);

-- It is compressed already.
ALTER TABLE durable.agent_checkpoints ALTER COLUMN state_blob SET STORAGE EXTERNAL;
