-- Who does it now: what a server that died was at is known when it comes back, and need not wait for its lease.
ALTER TABLE jobs ADD COLUMN worker TEXT;
