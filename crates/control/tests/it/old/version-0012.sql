PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE migrations (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL);
INSERT INTO migrations VALUES(1,'sandboxes',1794941529698);
INSERT INTO migrations VALUES(2,'audit_webhooks_pools',1794941529701);
INSERT INTO migrations VALUES(3,'sessions',1794941529703);
INSERT INTO migrations VALUES(5,'samples',1794941529704);
INSERT INTO migrations VALUES(6,'job_workers',1794941529705);
INSERT INTO migrations VALUES(7,'job_turns',1794941529706);
INSERT INTO migrations VALUES(8,'session_ends',1794941529707);
INSERT INTO migrations VALUES(9,'repeats_quotas_peers',1794941529708);
INSERT INTO migrations VALUES(11,'session_bytes',1794941529710);
INSERT INTO migrations VALUES(12,'retention',1794941529712);
CREATE TABLE organisations (
    id TEXT PRIMARY KEY,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO organisations VALUES('default',1794941532517,'{"id":"default","name":"default","created_at":"2026-11-17T18:52:12.517Z","quota":{"cpus_per_sandbox":4.0,"memory_per_sandbox":8589934592,"disk_per_sandbox":10737418240,"session_bytes":21474836480,"pids_per_sandbox":4096,"running_sandboxes":10000,"sandboxes":100000,"requests_per_second":1000,"organisation_requests_per_second":null}}');
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT,
    body TEXT NOT NULL
);
INSERT INTO api_keys VALUES('key_y7wrg7scgm2j9c4n','default','702bceff94d46b4ef93a6e557e20b0613ea027dda993f05960a5d919618fd998',1794941532525,NULL,1794941535621,'{"id":"key_y7wrg7scgm2j9c4n","organisation":"default","name":"first","scope":"operator","prefix":"e2b_5025","created_at":"2026-11-17T18:52:12.525Z","expires_at":null,"revoked_at":null,"last_used_at":null,"configured_by":["server_62cwcxrbpdugbj4x"]}');
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    name TEXT,
    template TEXT NOT NULL,
    owner TEXT,
    server TEXT NOT NULL,
    state TEXT NOT NULL,
    pool TEXT,
    generation BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_activity_at BIGINT NOT NULL,
    due_at BIGINT,
    body TEXT NOT NULL
, destroyed_at BIGINT);
INSERT INTO sandboxes VALUES('idz2266fnbaj5oxnj04x','default','plain','base',NULL,'server_62cwcxrbpdugbj4x','stopped',NULL,3,1794941535665,1794941535838,NULL,'{"id":"idz2266fnbaj5oxnj04x","organisation":"default","name":"plain","template":"base","root":"base","provider":"local","server":"server_62cwcxrbpdugbj4x","labels":{"a":"b"},"env":{},"limits":{"cpus":1.0,"memory":1073741824,"pids":512,"disk":3221225472,"inodes":null},"network":{"access":"closed","allow":[],"deny":[],"resolvers":[]},"timers":{"deadline":null,"at_deadline":"destroy","lifetime_seconds":null,"idle_seconds":900,"at_idle":"stop","idle_measure":"requests_and_work","archive_after_seconds":null,"delete_after_seconds":null,"ephemeral":false,"auto_resume":false},"owner":null,"user":"user","cwd":null,"public":false,"state":"stopped","cause":{"code":"requested","message":"a stop was asked for","at":"2026-11-17T18:52:15.913Z"},"state_since":"2026-11-17T18:52:15.941Z","created_at":"2026-11-17T18:52:15.665Z","started_at":"2026-11-17T18:52:15.838Z","last_activity_at":"2026-11-17T18:52:15.838Z","updated_at":null,"metered_from":"2026-11-17T18:52:15.941Z","access_token":"59afed1ec2cee6cf382f0f12a9f8b313d8ef838564d5585cbd1d9b9fe856becd","traffic_token":"cdc2ac5b36f9e9795b9555b402234be24c1c3512c172a3249cc4eef3d308d647","door":null,"pool":null,"has_archive":false,"generation":2}',NULL);
INSERT INTO sandboxes VALUES('isw3ss6zr0fgeaqlrpx2','default','cells','code-interpreter',NULL,'server_62cwcxrbpdugbj4x','running',NULL,1,1794941535855,1794941535886,1794942435886,'{"id":"isw3ss6zr0fgeaqlrpx2","organisation":"default","name":"cells","template":"code-interpreter","root":{"base_with":["/var/lib/cove/layers/abababababababababababababababababababababababababababababababab/usr"]},"provider":"local","server":"server_62cwcxrbpdugbj4x","labels":{},"env":{"A":"b"},"limits":{"cpus":1.0,"memory":1073741824,"pids":512,"disk":3221225472,"inodes":null},"network":{"access":"open","allow":[],"deny":[],"resolvers":[]},"timers":{"deadline":null,"at_deadline":"destroy","lifetime_seconds":null,"idle_seconds":900,"at_idle":"stop","idle_measure":"requests_and_work","archive_after_seconds":null,"delete_after_seconds":null,"ephemeral":false,"auto_resume":false},"owner":null,"user":"user","cwd":null,"public":false,"state":"running","cause":{"code":"requested","message":"a new sandbox was asked for","at":"2026-11-17T18:52:15.855Z"},"state_since":"2026-11-17T18:52:15.886Z","created_at":"2026-11-17T18:52:15.855Z","started_at":"2026-11-17T18:52:15.886Z","last_activity_at":"2026-11-17T18:52:15.886Z","updated_at":null,"metered_from":"2026-11-17T18:52:15.886Z","access_token":"98d43ffb129d26ff633bb6f50ef944a89dfd6ac8b6b11b7cdc43c8e06a01d61f","traffic_token":"a7e5e4f16e9972acd31332d9b8bf24acbb1247e5f03ee1f2e0481ca5ee6876f3","door":null,"pool":null,"has_archive":false,"generation":0}',NULL);
CREATE TABLE sandbox_labels (
    sandbox TEXT NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (sandbox, label)
);
INSERT INTO sandbox_labels VALUES('idz2266fnbaj5oxnj04x','a','b');
CREATE TABLE idempotency_keys (
    organisation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    subject TEXT NOT NULL,
    created_at BIGINT NOT NULL, fingerprint TEXT,
    PRIMARY KEY (organisation, idempotency_key)
);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    organisation TEXT NOT NULL,
    sandbox TEXT,
    kind TEXT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO events VALUES(1,'default','idz2266fnbaj5oxnj04x','sandbox.created',1794941535838,'{"cause":{"at":"2026-11-17T18:52:15.665Z","code":"requested","message":"a new sandbox was asked for"},"labels":{"a":"b"},"name":"plain","owner":null,"state":"running","template":"base"}');
INSERT INTO events VALUES(2,'default','isw3ss6zr0fgeaqlrpx2','sandbox.created',1794941535886,'{"cause":{"at":"2026-11-17T18:52:15.855Z","code":"requested","message":"a new sandbox was asked for"},"labels":{},"name":"cells","owner":null,"state":"running","template":"code-interpreter"}');
INSERT INTO events VALUES(3,'default','idz2266fnbaj5oxnj04x','sandbox.stopped',1794941535941,'{"cause":{"at":"2026-11-17T18:52:15.913Z","code":"requested","message":"a stop was asked for"},"labels":{"a":"b"},"name":"plain","owner":null,"state":"stopped","template":"base"}');
CREATE TABLE usage_spans (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    organisation TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    owner TEXT,
    from_at BIGINT NOT NULL,
    to_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO usage_spans VALUES(1,'default','idz2266fnbaj5oxnj04x',NULL,1794941535838,1794941535941,'{"cpus":1.0,"memory":1073741824,"disk":3221225472}');
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    organisation TEXT NOT NULL,
    server TEXT,
    unique_key TEXT,
    state TEXT NOT NULL,
    run_at BIGINT NOT NULL,
    lease_until BIGINT,
    attempts BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    error TEXT,
    payload TEXT NOT NULL
, worker TEXT);
CREATE TABLE servers (
    id TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO servers VALUES('server_62cwcxrbpdugbj4x',1794941537585,'{"url":"http://127.0.0.1:17171"}');
CREATE TABLE audit_entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    organisation TEXT NOT NULL,
    api_key TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    at BIGINT NOT NULL
);
INSERT INTO audit_entries VALUES(1,'default','key_y7wrg7scgm2j9c4n','sandbox.create','idz2266fnbaj5oxnj04x',1794941535667);
INSERT INTO audit_entries VALUES(2,'default','key_y7wrg7scgm2j9c4n','sandbox.create','isw3ss6zr0fgeaqlrpx2',1794941535856);
INSERT INTO audit_entries VALUES(3,'default','key_y7wrg7scgm2j9c4n','sandbox.stop','idz2266fnbaj5oxnj04x',1794941535913);
CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE cursors (
    name TEXT PRIMARY KEY,
    seq BIGINT NOT NULL
);
INSERT INTO cursors VALUES('identity',7189173798775998606);
CREATE TABLE pools (
    organisation TEXT NOT NULL,
    template TEXT NOT NULL,
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (organisation, template)
);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    closed_at BIGINT,
    body TEXT NOT NULL
, bytes BIGINT NOT NULL DEFAULT 0);
CREATE TABLE journal_entries (
    session TEXT NOT NULL,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, seq)
);
CREATE TABLE artifacts (
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, name)
);
CREATE TABLE samples (
    sandbox TEXT NOT NULL,
    at BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (sandbox, at)
);
INSERT INTO samples VALUES('isw3ss6zr0fgeaqlrpx2',1794941537593,'{"at":"2026-11-17T18:52:17.593Z","cpu_percent":0.0,"cpu_ns":41896000,"cpus":1.0,"memory":6283264,"memory_cache":0,"memory_limit":1073741824,"disk":16384,"disk_limit":3221225472,"network_received":0,"network_sent":0,"processes":5,"memory_kills":0}');
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    secret TEXT NOT NULL
);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('audit_entries',3);
INSERT INTO sqlite_sequence VALUES('events',3);
INSERT INTO sqlite_sequence VALUES('usage_spans',1);
CREATE INDEX api_keys_of_organisation ON api_keys (organisation, created_at);
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (organisation, name);
CREATE INDEX sandboxes_of_organisation ON sandboxes (organisation, created_at, id);
CREATE INDEX sandboxes_due ON sandboxes (due_at);
CREATE INDEX sandboxes_by_state ON sandboxes (state, server);
CREATE INDEX sandbox_labels_by_value ON sandbox_labels (label, value);
CREATE INDEX events_of_organisation ON events (organisation, seq);
CREATE INDEX events_of_sandbox ON events (sandbox, seq);
CREATE INDEX usage_of_organisation ON usage_spans (organisation, to_at);
CREATE INDEX usage_of_sandbox ON usage_spans (sandbox, to_at);
CREATE UNIQUE INDEX jobs_unique ON jobs (unique_key);
CREATE INDEX jobs_due ON jobs (state, run_at);
CREATE INDEX audit_of_organisation ON audit_entries (organisation, seq);
CREATE INDEX webhooks_of_organisation ON webhooks (organisation, created_at);
CREATE INDEX sessions_of_organisation ON sessions (organisation, created_at, id);
CREATE INDEX samples_by_age ON samples (at);
CREATE INDEX jobs_of_organisation ON jobs (kind, state, organisation, run_at);
CREATE INDEX sessions_by_end ON sessions (closed_at);
CREATE INDEX sessions_of_sandbox ON sessions (sandbox, created_at);
CREATE INDEX sandboxes_alive ON sandboxes (organisation, state) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_end ON sandboxes (destroyed_at);
CREATE INDEX idempotency_by_age ON idempotency_keys (created_at);
CREATE INDEX idempotency_by_subject ON idempotency_keys (subject);
CREATE INDEX audit_by_age ON audit_entries (at);
CREATE INDEX usage_by_age ON usage_spans (to_at);
CREATE INDEX events_by_age ON events (at);
CREATE INDEX jobs_by_end ON jobs (finished_at);
COMMIT;
