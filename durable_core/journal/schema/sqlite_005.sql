-- Drives that come to their deadline with nothing finished are counted, so that none loops for ever.

ALTER TABLE runs ADD COLUMN idle_drives INTEGER NOT NULL DEFAULT 0;
