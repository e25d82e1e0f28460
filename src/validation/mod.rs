//! What a value must be before any room works with it.

mod device_id;

pub use self::device_id::DeviceId;
