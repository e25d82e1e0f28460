//! Enums that text columns hold. A test compares each with the check of its column.

/// `text_enum! { Role { Owner = "owner", .. } }`: an enum whose variants have one spelling in SQL, JSON and code.
///
/// Gives `ALL`, `as_str` and `parse`, serde's traits, and those of Postgres for columns of type `text`.
macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every variant.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// As it is written in SQL and JSON.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            /// The variant that is written so.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str(self.as_str())
            }
        }

        impl tokio_postgres::types::ToSql for $name {
            fn accepts(kind: &tokio_postgres::types::Type) -> bool {
                <&str as tokio_postgres::types::ToSql>::accepts(kind)
            }

            tokio_postgres::types::to_sql_checked!();

            fn to_sql(
                &self,
                kind: &tokio_postgres::types::Type,
                out: &mut bytes::BytesMut,
            ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                self.as_str().to_sql(kind, out)
            }
        }

        impl<'a> tokio_postgres::types::FromSql<'a> for $name {
            fn accepts(kind: &tokio_postgres::types::Type) -> bool {
                <&str as tokio_postgres::types::FromSql<'_>>::accepts(kind)
            }

            fn from_sql(
                kind: &tokio_postgres::types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                let text = <&str as tokio_postgres::types::FromSql<'_>>::from_sql(kind, raw)?;
                Self::parse(text).ok_or_else(|| concat!("no ", stringify!($name)).into())
            }
        }
    };
}
pub(crate) use text_enum;
