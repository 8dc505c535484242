-- Whose deliveries wait, and which of them is next, however many there are.
CREATE INDEX jobs_of_organisation ON jobs (kind, state, organisation, run_at);
