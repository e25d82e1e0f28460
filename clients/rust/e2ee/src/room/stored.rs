//! Marks as a store keeps them: the same JSON in every language, which may leave out the later fields.

use serde_json::{Map, Value, json};

use super::{Marks, Visibility};
use crate::Principal;

impl Marks {
    /// For a store.
    #[must_use]
    pub fn store(&self) -> Value {
        let mut stored = json!({ "epoch": self.epoch, "time": self.time });
        if let Some(members) = &self.members {
            let members = members.iter();
            let members = members.map(|(who, how)| (who.to_hex(), how.name().into()));
            stored["members"] = Value::Object(members.collect::<Map<_, _>>());
        }
        for (name, is_so) in [("encrypted", self.encrypted), ("changed", self.changed)] {
            if is_so {
                stored[name] = true.into();
            }
        }
        stored
    }

    /// Takes up what [`Self::store`] gave; none if this is something else.
    #[must_use]
    pub fn restore(stored: &Value) -> Option<Self> {
        let member = |(who, how): (&String, &Value)| {
            let how = Visibility::from_name(how.as_str()?)?;
            Some((Principal::from_hex(who).ok()?, how))
        };
        let members = stored["members"].as_object();
        Some(Self {
            epoch: u32::try_from(stored["epoch"].as_u64()?).ok()?,
            time: stored["time"].as_u64()?,
            members: members.and_then(|members| members.iter().map(member).collect()),
            encrypted: stored["encrypted"] == true,
            changed: stored["changed"] == true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Room;

    #[test]
    fn marks_come_back_from_a_store() {
        let (ada, echo) = (Principal::User([1; 16]), Principal::Agent([2; 16]));
        let members = [(ada, Visibility::All), (echo, Visibility::Addressed)];
        let marks = Marks {
            epoch: 3,
            time: 7,
            members: Some(members.into()),
            encrypted: true,
            changed: true,
        };
        assert_eq!(Marks::restore(&marks.store()), Some(marks));
        let before = json!({ "epoch": 3, "time": 7 });
        let marks = Marks::restore(&before).expect("marks of an earlier version");
        assert!(marks.members.is_none() && !marks.changed);
        assert_eq!(marks.store(), before);
        let mut room = Room::new([7; 16], true);
        room.saw_envelope();
        let marks = Marks::restore(&room.marks().store()).expect("marks");
        let room = Room::new([7; 16], true).with_marks(marks);
        assert!(room.was_encrypted(), "no epoch was ever seen");
        assert!(Marks::restore(&json!({ "epoch": -1, "time": 7 })).is_none());
    }
}
