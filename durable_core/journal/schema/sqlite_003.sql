-- Checkpoints of agents. The state comes last: reading another column mustn't walk through its pages.

CREATE TABLE agent_checkpoints (
  id TEXT NOT NULL PRIMARY KEY,
  session_id TEXT NOT NULL, agent_id TEXT NOT NULL, step_id TEXT NOT NULL,
  seq INTEGER NOT NULL,                 -- place in the session, from 1
  format TEXT NOT NULL,                 -- json | json+gzip
  size_bytes INTEGER NOT NULL, state_hash TEXT NOT NULL,   -- of the JSON
  created_at INTEGER NOT NULL,          -- milliseconds since the epoch
  metadata TEXT,                        -- JSON
  state_ref TEXT,                       -- of the blob, when the state isn't here
  state_blob TEXT);                     -- JSON, or base64 of its gzip

CREATE UNIQUE INDEX agent_checkpoints_by_session ON agent_checkpoints (session_id, seq);
CREATE INDEX agent_checkpoints_by_agent ON agent_checkpoints (session_id, agent_id, seq);
CREATE INDEX agent_checkpoints_by_step ON agent_checkpoints (session_id, step_id, seq);
