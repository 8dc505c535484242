CREATE TABLE audit_entries (
    seq {serial},
    organisation TEXT NOT NULL,
    api_key TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX audit_of_organisation ON audit_entries (organisation, seq);

CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX webhooks_of_organisation ON webhooks (organisation, created_at);

-- How far a follower of the events has come.
CREATE TABLE cursors (
    name TEXT PRIMARY KEY,
    seq BIGINT NOT NULL
);

CREATE TABLE pools (
    organisation TEXT NOT NULL,
    template TEXT NOT NULL,
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (organisation, template)
);
