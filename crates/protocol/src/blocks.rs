//! The block list of a user: `/users/me/blocks`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Principal, PrincipalKind},
    time::Timestamp,
};

/// A principal on the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Block {
    /// Whether it is a user or an agent.
    pub principal_type: PrincipalKind,
    /// The principal; the next page starts after it.
    pub principal_id: Principal,
    /// Its name; empty if nothing is left of it.
    pub display_name: String,
    /// The time of the block.
    pub blocked_at: Timestamp,
}

/// The answer to a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Blocked {
    /// The principal.
    pub principal_id: Principal,
    /// The time of the block, which a repeat does not change.
    pub blocked_at: Timestamp,
}

/// The answer to the end of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Unblocked {
    /// The principal.
    pub principal_id: Principal,
}
