-- Bytes that a sandbox's disk may hold: an organisation may have a maximum of them together.
ALTER TABLE sandboxes ADD COLUMN disk BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET disk = {disk} WHERE state <> 'destroyed';

-- Counted with the sandboxes, without a look at their rows.
DROP INDEX sandboxes_alive;
CREATE INDEX sandboxes_alive ON sandboxes (organisation, state, disk) WHERE state <> 'destroyed';
