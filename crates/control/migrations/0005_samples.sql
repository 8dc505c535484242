-- What sandboxes used, now and then, for as long as the operator keeps it.
CREATE TABLE samples (
    sandbox TEXT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (sandbox, at)
);
CREATE INDEX samples_by_age ON samples (at);
