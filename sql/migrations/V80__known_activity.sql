-- The activity of the conversations of before. Sends wait for this: 16 s for 10^6 members in memory.

update conversation set activity_until = activity_ceiling(coalesce(last_message_id, conversation_id)) where activity_until is null;

insert into member_activity (conversation_id, principal_id, activity_until)
select m.conversation_id, m.principal_id, c.activity_until from member m join conversation c using (conversation_id)
on conflict do nothing;
