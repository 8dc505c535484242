-- The build that an archive was sent for, which alone may use it: it goes with the end of that build. Empty until the
-- build is begun; null where every build of the organisation may use the archive.
ALTER TABLE build_files ADD COLUMN build TEXT;
CREATE INDEX build_files_of_build ON build_files (build) WHERE build IS NOT NULL;

-- Images on their way to a registry. What is said meanwhile is in build_logs, under the id of the push.
CREATE TABLE pushes (
    id TEXT NOT NULL PRIMARY KEY,
    organisation TEXT NOT NULL,
    -- pushing, done, error or cancelled
    state TEXT NOT NULL,
    -- The server that does it.
    server TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX pushes_of_organisation ON pushes (organisation, created_at, id);
CREATE INDEX pushes_under_way ON pushes (server) WHERE state = 'pushing';
