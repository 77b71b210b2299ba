-- Drives that come to their deadline with nothing finished are counted, so that none loops for ever.

ALTER TABLE durable.runs ADD COLUMN idle_drives bigint NOT NULL DEFAULT 0;
