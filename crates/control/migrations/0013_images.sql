-- Trees of files that roots are made of. `draft` until it is sealed, `going` once nobody may begin to use it.
CREATE TABLE layers (
    id TEXT NOT NULL PRIMARY KEY,
    -- image, delta or packages
    kind TEXT NOT NULL,
    -- Whose bytes they are; null where several organisations share them.
    organisation TEXT,
    bytes BIGINT NOT NULL,
    files BIGINT NOT NULL,
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL
);
CREATE INDEX layers_by_use ON layers (state, last_used_at);
CREATE INDEX layers_of_organisation ON layers (organisation);

-- Which provider of which server has it.
CREATE TABLE layer_places (
    layer TEXT NOT NULL,
    server TEXT NOT NULL,
    provider TEXT NOT NULL,
    PRIMARY KEY (layer, server, provider)
);
CREATE INDEX layer_places_of_server ON layer_places (server, provider);

-- Who needs it: a build, a step, an image, a sandbox, or work under way. Written in the transaction of its user.
CREATE TABLE layer_uses (
    layer TEXT NOT NULL,
    user_kind TEXT NOT NULL,
    user_id TEXT NOT NULL,
    PRIMARY KEY (layer, user_kind, user_id)
);
CREATE INDEX layer_uses_of_user ON layer_uses (user_kind, user_id);

-- Images of registries and archives, by the digest of their manifest.
CREATE TABLE images (
    digest TEXT NOT NULL PRIMARY KEY,
    layer TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    pulled_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX images_by_use ON images (last_used_at);

-- What a name meant when the registry was last asked; each organisation asks with its own right.
CREATE TABLE image_names (
    organisation TEXT NOT NULL,
    reference TEXT NOT NULL,
    digest TEXT NOT NULL,
    checked_at BIGINT NOT NULL,
    PRIMARY KEY (organisation, reference)
);
CREATE INDEX image_names_of_digest ON image_names (digest);

CREATE TABLE templates (
    id TEXT NOT NULL PRIMARY KEY,
    -- Empty: the installation's own, for everybody.
    organisation TEXT NOT NULL,
    -- built or snapshot, or checkpoints of one sandbox
    kind TEXT NOT NULL,
    -- 0 or 1
    public BIGINT NOT NULL,
    -- The sandbox that it is a snapshot of.
    source_sandbox TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT,
    body TEXT NOT NULL
);
CREATE INDEX templates_of_organisation ON templates (organisation, kind, created_at, id);
CREATE INDEX templates_of_sandbox ON templates (source_sandbox);
CREATE INDEX templates_by_end ON templates (deleted_at);

-- Names and aliases: each leads to one template. `place` 0 is the name.
CREATE TABLE template_names (
    organisation TEXT NOT NULL,
    name TEXT NOT NULL,
    template TEXT NOT NULL,
    place BIGINT NOT NULL,
    PRIMARY KEY (organisation, name)
);
CREATE INDEX template_names_of_template ON template_names (template, place);

CREATE TABLE builds (
    id TEXT NOT NULL PRIMARY KEY,
    template TEXT NOT NULL,
    organisation TEXT NOT NULL,
    -- image, steps, dockerfile, archive, packages or capture
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    -- The server that has its files, and does the work.
    server TEXT NOT NULL,
    source_sandbox TEXT,
    parent_build TEXT,
    generation BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    last_used_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX builds_of_template ON builds (template, created_at, id);
CREATE INDEX builds_of_organisation ON builds (organisation, state);
CREATE INDEX builds_of_sandbox ON builds (source_sandbox, created_at);
CREATE INDEX builds_of_parent ON builds (parent_build);

-- What is to be done; no credentials and no secrets are in it.
CREATE TABLE build_requests (
    build TEXT NOT NULL PRIMARY KEY,
    body TEXT NOT NULL
);

CREATE TABLE template_tags (
    template TEXT NOT NULL,
    tag TEXT NOT NULL,
    build TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (template, tag)
);
CREATE INDEX template_tags_of_build ON template_tags (build);

-- Steps that were done before, by what they were made of.
CREATE TABLE steps (
    organisation TEXT NOT NULL,
    step_key TEXT NOT NULL,
    server TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (organisation, step_key, server)
);
CREATE INDEX steps_by_use ON steps (last_used_at);

-- Archives that were sent for COPY; their bytes are in the object store.
CREATE TABLE build_files (
    organisation TEXT NOT NULL,
    hash TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    PRIMARY KEY (organisation, hash)
);
CREATE INDEX build_files_by_use ON build_files (last_used_at);

CREATE TABLE build_logs (
    build TEXT NOT NULL,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL,
    level TEXT NOT NULL,
    step TEXT,
    message TEXT NOT NULL,
    PRIMARY KEY (build, seq)
);

CREATE TABLE volumes (
    id TEXT NOT NULL PRIMARY KEY,
    organisation TEXT NOT NULL,
    -- Null once it is gone, so that the name is free again.
    name TEXT,
    server TEXT NOT NULL,
    provider TEXT NOT NULL,
    state TEXT NOT NULL,
    size_limit BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    deleted_at BIGINT,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX volumes_name ON volumes (organisation, name);
CREATE INDEX volumes_of_organisation ON volumes (organisation, created_at, id);
CREATE INDEX volumes_by_end ON volumes (deleted_at);

-- Which sandboxes have it, from their creation to their end.
CREATE TABLE volume_mounts (
    sandbox TEXT NOT NULL,
    path TEXT NOT NULL,
    volume TEXT NOT NULL,
    PRIMARY KEY (sandbox, path)
);
CREATE INDEX volume_mounts_of_volume ON volume_mounts (volume);

-- What a sandbox started from, and which one it is a copy of.
ALTER TABLE sandboxes ADD COLUMN build TEXT;
ALTER TABLE sandboxes ADD COLUMN parent TEXT;
CREATE INDEX sandboxes_of_build ON sandboxes (build) WHERE build IS NOT NULL;
CREATE INDEX sandboxes_of_parent ON sandboxes (parent, created_at) WHERE parent IS NOT NULL;
