-- Times are milliseconds since 1970; `body` is the noun as JSON, columns are what is asked for by SQL.
-- {serial} is the database's own rising number.

CREATE TABLE organisations (
    id TEXT PRIMARY KEY,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL
);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT,
    body TEXT NOT NULL
);
CREATE INDEX api_keys_of_organisation ON api_keys (organisation, created_at);

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    -- Null once the sandbox is gone, so that the name is free again.
    name TEXT,
    template TEXT NOT NULL,
    owner TEXT,
    server TEXT NOT NULL,
    state TEXT NOT NULL,
    pool TEXT,
    generation BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_activity_at BIGINT NOT NULL,
    -- When a timer may go off.
    due_at BIGINT,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (organisation, name);
CREATE INDEX sandboxes_of_organisation ON sandboxes (organisation, created_at, id);
CREATE INDEX sandboxes_due ON sandboxes (due_at);
CREATE INDEX sandboxes_by_state ON sandboxes (state, server);

CREATE TABLE sandbox_labels (
    sandbox TEXT NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (sandbox, label)
);
CREATE INDEX sandbox_labels_by_value ON sandbox_labels (label, value);

CREATE TABLE idempotency_keys (
    organisation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    subject TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (organisation, idempotency_key)
);

CREATE TABLE events (
    seq {serial},
    organisation TEXT NOT NULL,
    sandbox TEXT,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX events_of_organisation ON events (organisation, seq);
CREATE INDEX events_of_sandbox ON events (sandbox, seq);

CREATE TABLE usage_spans (
    seq {serial},
    organisation TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    owner TEXT,
    from_at BIGINT NOT NULL,
    to_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX usage_of_organisation ON usage_spans (organisation, to_at);
CREATE INDEX usage_of_sandbox ON usage_spans (sandbox, to_at);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    organisation TEXT NOT NULL,
    -- Null where any server may do it.
    server TEXT,
    -- At most one job that is not finished bears a key.
    unique_key TEXT,
    state TEXT NOT NULL,
    run_at BIGINT NOT NULL,
    lease_until BIGINT,
    attempts BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    error TEXT,
    payload TEXT NOT NULL
);
CREATE UNIQUE INDEX jobs_unique ON jobs (unique_key);
CREATE INDEX jobs_due ON jobs (state, run_at);

CREATE TABLE servers (
    id TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
