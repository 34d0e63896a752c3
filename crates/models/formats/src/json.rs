//! A reader of untrusted JSON.
//!
//! Hostile text can exhaust neither memory nor the stack. Unknown values are skipped and not stored, a
//! value of the wrong type is not copied into the error, and serde_json limits nesting to 128 levels.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::reason::{Item, JsonError, Reason};

/// The value that is expected at one place of the text. A type accepts the kinds of values whose methods
/// it overrides, and refuses all others.
pub(super) trait Expect<'de>: Sized {
    /// The Rust value that is made from the text.
    type Value;
    /// The name of the expected value, with an article, for messages.
    const WHAT: &'static str;

    fn null<E: Error>(self) -> Result<Self::Value, E> {
        Err(other::<Self, E>("null"))
    }

    fn boolean<E: Error>(self) -> Result<Self::Value, E> {
        Err(other::<Self, E>("true or false"))
    }

    fn unsigned<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Err(other::<Self, E>(&number.to_string()))
    }

    fn negative<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Err(other::<Self, E>(&number.to_string()))
    }

    fn float<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Err(other::<Self, E>(&number.to_string()))
    }

    fn text<E: Error>(self, _text: &str) -> Result<Self::Value, E> {
        Err(other::<Self, E>("a string"))
    }

    fn list<A: SeqAccess<'de>>(self, _list: A) -> Result<Self::Value, A::Error> {
        Err(other::<Self, A::Error>("a list"))
    }

    fn object<A: MapAccess<'de>>(self, _object: A) -> Result<Self::Value, A::Error> {
        Err(other::<Self, A::Error>("an object"))
    }
}

fn other<'de, T: Expect<'de>, E: Error>(found: &str) -> E {
    E::custom(format_args!("expected {}, found {found}", T::WHAT))
}

/// Passes values of the text to an [`Expect`].
pub(super) struct At<T>(pub(super) T);

impl<'de, T: Expect<'de>> DeserializeSeed<'de> for At<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Expect<'de>> Visitor<'de> for At<T> {
    type Value = T::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_unit<E: Error>(self) -> Result<T::Value, E> {
        self.0.null()
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<T::Value, E> {
        self.0.boolean()
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T::Value, E> {
        self.0.unsigned(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T::Value, E> {
        self.0.negative(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T::Value, E> {
        self.0.float(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T::Value, E> {
        self.0.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T::Value, A::Error> {
        self.0.list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<T::Value, A::Error> {
        self.0.object(object)
    }
}

/// A string, which is copied.
pub(super) struct Text;

impl Expect<'_> for Text {
    type Value = String;
    const WHAT: &'static str = "a string";

    fn text<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// A whole number that is not negative.
pub(super) struct Unsigned;

impl Expect<'_> for Unsigned {
    type Value = u64;
    const WHAT: &'static str = "a whole number below 2^64";

    fn unsigned<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}

/// Any value, which is dropped. Unlike serde's `IgnoredAny`, it is subject to the nesting limit.
pub(super) struct Skip;

impl<'de> Expect<'de> for Skip {
    type Value = ();
    const WHAT: &'static str = "anything";

    fn null<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn boolean<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn unsigned<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn negative<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn float<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn text<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn list<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(At(Skip))?.is_some() {}
        Ok(())
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        while object.next_key_seed(At(Skip))?.is_some() {
            object.next_value_seed(At(Skip))?;
        }
        Ok(())
    }
}

/// The reason why a text is refused. `serde_json::Error` cannot carry it.
#[derive(Default)]
pub(super) struct Refusal(RefCell<Option<Noted>>);

enum Noted {
    /// The reason.
    Reason(Reason),
    /// The part of the text that the error of the JSON reader is about.
    Item(Item),
}

impl Refusal {
    /// Records the reason, and returns the error that ends the reading. The first record stays, because
    /// it is the innermost.
    pub(super) fn refuse<E: Error>(&self, reason: impl FnOnce() -> Reason) -> E {
        self.0.borrow_mut().get_or_insert_with(|| Noted::Reason(reason()));
        E::custom("refused")
    }

    /// Records the part of the text that `error` is about, unless there is a record already.
    pub(super) fn within<E: Error>(&self, error: E, item: impl FnOnce() -> Item) -> E {
        self.0.borrow_mut().get_or_insert_with(|| Noted::Item(item()));
        error
    }

    /// Reads all of `text` as `expected`.
    ///
    /// # Errors
    /// The recorded reason, or else the error of the JSON reader.
    pub(super) fn read<'de, T: Expect<'de>>(
        &self,
        text: &'de str,
        expected: T,
    ) -> Result<T::Value, Box<Reason>> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = At(expected).deserialize(&mut reader).and_then(|value| {
            reader.end()?;
            Ok(value)
        });
        read.map_err(|error| {
            let item = match self.0.take() {
                Some(Noted::Reason(reason)) => return reason.into(),
                Some(Noted::Item(item)) => Some(item),
                None => None,
            };
            Reason::Json { item, error: JsonError::from(&error) }.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'de, T: Expect<'de>>(text: &'de str, expected: T) -> Result<T::Value, String> {
        Refusal::default().read(text, expected).map_err(|reason| match *reason {
            Reason::Json { item: None, error } => error.to_string(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn an_error_names_the_expected_value_and_does_not_copy_the_text() {
        let long = format!("\"{}\"", "x".repeat(10_000));
        for (text, found) in [
            (long.as_str(), "a string"),
            ("[1]", "a list"),
            ("{}", "an object"),
            ("-3", "-3"),
            ("1.5", "1.5"),
            ("null", "null"),
            ("true", "true or false"),
        ] {
            let reason = read(text, Unsigned).unwrap_err();
            let expected = format!("expected a whole number below 2^64, found {found} at line 1");
            assert!(reason.starts_with(&expected), "{reason}");
        }
        assert_eq!(read("18446744073709551615", Unsigned), Ok(u64::MAX));
        assert!(read("18446744073709551616", Unsigned).is_err());
    }

    #[test]
    fn nesting_ends_at_the_limit() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        read(&nested(100), Skip).unwrap();
        let reason = read(&nested(100_000), Skip).unwrap_err();
        assert!(reason.contains("recursion limit"), "{reason}");
    }
}
