-- Sessions that ended, to be removed when their time is over; those of one sandbox, which are counted.
CREATE INDEX sessions_by_end ON sessions (closed_at);
CREATE INDEX sessions_of_sandbox ON sessions (sandbox, created_at);
