//! The macros behind the catalogues and the words of the protocol.

/// Makes an enum, `ALL` (every row in order) and `row()` (the columns of a row) out of one line per
/// row. Code, tests and documents then loop over the same table.
#[macro_export]
macro_rules! catalogue {
    ($(#[$doc:meta])* pub enum $name:ident: $columns:ty { $($(#[$row_doc:meta])* $variant:ident = $row:expr;)+ }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the row of the table says what a variant is")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$row_doc])* $variant),+ }

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

/// Implements a string schema for a type that serialises as a string.
macro_rules! string_schema {
    ($name:ident, $description:expr, $build:expr) => {
        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let build: fn(utoipa::openapi::ObjectBuilder) -> utoipa::openapi::ObjectBuilder =
                    $build;
                let object = utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some($description));
                build(object).into()
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

/// Makes an enum whose variants are words on the wire and in columns.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $(#[derive($($derive:ident),+)])? pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[doc = $doc])+
        $(#[derive($($derive),+)])?
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// Every word, in the order of the table.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::errors::UnknownWord;

            fn from_str(text: &str) -> Result<Self, $crate::errors::UnknownWord> {
                match text {
                    $($word => Ok($name::$variant),)+
                    _ => Err($crate::errors::UnknownWord),
                }
            }
        }

        string_schema!($name, concat!($($doc),+).trim(), |object| {
            object.enum_values(Some([$($word),+]))
        });

        #[cfg(feature = "sql")]
        impl postgres_types::ToSql for $name {
            fn to_sql(
                &self,
                kind: &postgres_types::Type,
                out: &mut bytes::BytesMut,
            ) -> Result<postgres_types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                self.as_str().to_sql(kind, out)
            }

            fn accepts(kind: &postgres_types::Type) -> bool {
                <&str as postgres_types::ToSql>::accepts(kind)
            }

            postgres_types::to_sql_checked!();
        }

        #[cfg(feature = "sql")]
        impl<'a> postgres_types::FromSql<'a> for $name {
            fn from_sql(
                kind: &postgres_types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Ok(<&str as postgres_types::FromSql>::from_sql(kind, raw)?.parse()?)
            }

            fn accepts(kind: &postgres_types::Type) -> bool {
                <&str as postgres_types::FromSql>::accepts(kind)
            }
        }
    };
}
