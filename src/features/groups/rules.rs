//! The rules for removals and for the size of a group.

use std::collections::HashSet;

use blindpipe_protocol::conversations::Role;

use crate::ids::UserId;

/// The users to be added, sorted by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SortedUsers {
    pub added: Vec<UserId>,
    pub already: Vec<UserId>,
    pub unknown: Vec<UserId>,
    pub too_many: Vec<UserId>,
}

/// Sorts the requested users, each once, in the requested order. Members stay, other users must
/// exist, and at most `free_places` are added.
pub fn sort(
    asked: &[UserId],
    members: &HashSet<UserId>,
    known: &HashSet<UserId>,
    free_places: usize,
) -> SortedUsers {
    let mut sorted = SortedUsers::default();
    let mut seen = HashSet::new();
    for id in asked.iter().copied().filter(|id| seen.insert(*id)) {
        let place = if members.contains(&id) {
            &mut sorted.already
        } else if !known.contains(&id) {
            &mut sorted.unknown
        } else if sorted.added.len() == free_places {
            &mut sorted.too_many
        } else {
            &mut sorted.added
        };
        place.push(id);
    }
    sorted
}

/// Whether a principal with role `by` may remove a member. Everyone may leave; admins may remove
/// all but the owner.
pub fn may_remove(by: Role, member: Role, oneself: bool) -> bool {
    oneself || (by.is_admin() && member != Role::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(ids: &[u128]) -> Vec<UserId> {
        ids.iter()
            .map(|id| UserId::from_bytes(id.to_be_bytes()))
            .collect()
    }

    #[test]
    fn each_user_is_sorted_once_and_the_room_is_kept() {
        let set = |ids: &[u128]| users(ids).into_iter().collect::<HashSet<_>>();
        let sorted = sort(
            &users(&[1, 2, 2, 9, 3, 4, 1]),
            &set(&[1]),
            &set(&[1, 2, 3, 4]),
            2,
        );
        assert_eq!(sorted.added, users(&[2, 3]));
        assert_eq!(sorted.already, users(&[1]));
        assert_eq!(sorted.unknown, users(&[9]));
        assert_eq!(sorted.too_many, users(&[4]));
        assert!(
            sort(&users(&[2]), &set(&[]), &set(&[2]), 0)
                .added
                .is_empty()
        );
    }

    #[test]
    fn admins_remove_all_but_the_owner_and_everyone_leaves() {
        for (by, member, oneself, may) in [
            (Role::Owner, Role::Admin, false, true),
            (Role::Owner, Role::Agent, false, true),
            (Role::Admin, Role::Admin, false, true),
            (Role::Admin, Role::Owner, false, false),
            (Role::Member, Role::Member, false, false),
            (Role::Member, Role::Agent, false, false),
            (Role::Agent, Role::Member, false, false),
            (Role::Owner, Role::Owner, true, true),
            (Role::Member, Role::Member, true, true),
            (Role::Agent, Role::Agent, true, true),
        ] {
            assert_eq!(
                may_remove(by, member, oneself),
                may,
                "{by} removes {member}"
            );
        }
    }
}
