CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    closed_at BIGINT,
    body TEXT NOT NULL
);
CREATE INDEX sessions_of_organisation ON sessions (organisation, created_at, id);

-- What a session said, to be read again from any number on.
CREATE TABLE journal_entries (
    session TEXT NOT NULL,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, seq)
);

-- Files that a session made; their bytes are in the object store.
CREATE TABLE artifacts (
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, name)
);
