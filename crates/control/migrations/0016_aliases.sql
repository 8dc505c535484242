-- Other names that a sandbox answers to at every door: ids that it had elsewhere. Each leads to one sandbox of the installation,
-- because links by host name say no organisation.
CREATE TABLE sandbox_aliases (
    alias TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    sandbox TEXT NOT NULL
);
CREATE INDEX sandbox_aliases_sandbox ON sandbox_aliases (sandbox);
