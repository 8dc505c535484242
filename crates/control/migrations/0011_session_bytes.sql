-- Bytes of a session's journal and artifacts: an organisation has a maximum of them. Artifacts of before are not counted.
ALTER TABLE sessions ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE sessions SET bytes = COALESCE(
    (SELECT CAST(SUM(OCTET_LENGTH(body)) AS BIGINT) FROM journal_entries WHERE session = sessions.id), 0);
