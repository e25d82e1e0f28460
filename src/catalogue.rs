//! The one macro behind every catalogue (errors, limits, close codes, events): an enum and its rows out of one
//! line per row, so that code, tests and documents loop over the same table.

/// Makes an enum, `ALL` (every row in order) and `row()` (the columns of a row).
#[macro_export]
macro_rules! catalogue {
    ($(#[$doc:meta])* pub enum $name:ident: $columns:ty { $($variant:ident = $row:expr;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant),+ }

        impl $name {
            /// Every row, in the order of the table.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The columns of this row.
            pub const fn row(self) -> $columns {
                match self { $($name::$variant => $row),+ }
            }
        }
    };
}
