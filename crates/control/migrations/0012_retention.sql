-- Rows are kept for as long as the operator says, and found by their age.
ALTER TABLE sandboxes ADD COLUMN destroyed_at BIGINT;
UPDATE sandboxes SET destroyed_at = last_activity_at WHERE state = 'destroyed';
CREATE INDEX sandboxes_by_end ON sandboxes (destroyed_at);
CREATE INDEX idempotency_by_age ON idempotency_keys (created_at);
CREATE INDEX idempotency_by_subject ON idempotency_keys (subject);
CREATE INDEX audit_by_age ON audit_entries (at);
CREATE INDEX usage_by_age ON usage_spans (to_at);
CREATE INDEX events_by_age ON events (at);
CREATE INDEX jobs_by_end ON jobs (finished_at);
