-- What was asked for with an idempotency key: the same key with another request is refused. Null in rows of before.
ALTER TABLE idempotency_keys ADD COLUMN fingerprint TEXT;

-- Several servers count an organisation's sandboxes before each creation; those that are gone are not in their way.
CREATE INDEX sandboxes_alive ON sandboxes (organisation, state) WHERE state <> 'destroyed';

-- What servers of one database prove to each other who they are with.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    secret TEXT NOT NULL
);
