//! Conversations, their members and read marks.
//!
//! Promises: two principals have at most one conversation of their own, however many requests race
//! to open it. Only members learn that a conversation exists. `encryption: required` is never taken
//! back.

mod audience;
pub(crate) mod http;
mod marks;
mod store;

pub use blindpipe_protocol::conversations::{Conversation, Member};

pub use self::{
    audience::Audience,
    marks::{ReadMarks, publish_forgotten_marks},
    store::{
        AgentMembership, AskedUser, MembershipScope, Place, add_member, asked_user, begin_epoch,
        is_admin, kind, leave_next, lock, member, members, open_agent, place_agent, recipients,
        remove_member, renew_agent, require_rotation, require_rotation_of, set_role, touch,
        updated,
    },
};
