-- The trace that a job, or an event that waits for a turn of a webhook, is part of: `traceparent`, by the event's number
-- in the turn. None unless it is sampled.
alter table job add column trace text;
alter table webhook_turn add column traces jsonb;
