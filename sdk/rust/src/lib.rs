//! Write a reducer of Polynya in Rust.
//!
//! A reducer folds the records of a stream into a state, which is published as a snapshot of the
//! stream. It is a WebAssembly module: implement [`Reducer`], name the type in [`reducer!`], and
//! build with `cargo build --release --target wasm32-unknown-unknown`.
//!
//! ```
//! use polynya_reducer::{Record, Reducer};
//!
//! #[derive(Default)]
//! struct Count(u64);
//!
//! impl Reducer for Count {
//!     const CONTENT_TYPE: &'static str = "application/json";
//!
//!     fn restore(&mut self, state: &[u8]) -> Result<(), String> {
//!         let text = std::str::from_utf8(state).map_err(|error| error.to_string())?;
//!         self.0 = text.parse().map_err(|error| format!("not a count: {error}"))?;
//!         Ok(())
//!     }
//!
//!     fn apply(&mut self, _record: &Record<'_>) -> Result<(), String> {
//!         self.0 += 1;
//!         Ok(())
//!     }
//!
//!     fn state(&self) -> Vec<u8> {
//!         self.0.to_string().into_bytes()
//!     }
//! }
//!
//! polynya_reducer::reducer!(Count);
//! # fn main() {}
//! ```
//!
//! Equal records must give equal bytes: write maps in the order of their keys (`BTreeMap`). An
//! error or a panic stops the reducer for that stream, with its message; other streams go on.

#![deny(missing_docs)]

pub mod json;

/// A record of the stream. Times are milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number in the stream.
    pub number: u64,
    /// When it was appended; 0 if that is not known.
    pub append_ms: i64,
    /// Its own time, else the append time.
    pub time_ms: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; `None` is a deletion, as Kafka's null.
    pub value: Option<&'a [u8]>,
}

/// A state, and how records change it.
pub trait Reducer: Default {
    /// The content type of the states.
    const CONTENT_TYPE: &'static str = "application/octet-stream";

    /// Begin at bytes that [`Reducer::state`] returned. Called on the default value.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;

    /// Apply one record.
    fn apply(&mut self, record: &Record<'_>) -> Result<(), String>;

    /// The state after the records so far. Equal records must give equal bytes.
    fn state(&self) -> Vec<u8>;

    /// Begin at a state of an older revision of this reducer.
    fn migrate(&mut self, _state: &[u8]) -> Result<(), String> {
        Err("this reducer has no migrate: it must begin at the first record".into())
    }

    /// The part of the state for one key, as JSON; `None` if there is none.
    fn get(&self, _key: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

const HEAD: usize = 32;
const NONE: u32 = u32::MAX;

/// The records of a frame (ABI 1).
pub struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// The records of these bytes.
    pub fn new(frame: &'a [u8]) -> Self {
        Records(frame)
    }

    fn part(&mut self, length: u32) -> Option<&'a [u8]> {
        if length == NONE {
            return None;
        }
        let (part, rest) = self.0.split_at(length as usize);
        self.0 = rest;
        Some(part)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let (head, rest) = self.0.split_at(HEAD);
        self.0 = rest;
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        Some(Record {
            number: long(0),
            append_ms: long(8) as i64,
            time_ms: long(16) as i64,
            key: self.part(short(24)),
            value: self.part(short(28)),
        })
    }
}

/// What [`reducer!`] calls. Not for direct use.
#[doc(hidden)]
pub mod guest {
    use super::{Records, Reducer};
    use std::cell::RefCell;
    use std::sync::Mutex;

    static ERROR: Mutex<String> = Mutex::new(String::new());

    /// The state of a module: the reducer, its input and its last output.
    pub struct Guest<R> {
        reducer: R,
        input: Vec<u8>,
        output: Vec<u8>,
    }

    impl<R: Reducer> Default for Guest<R> {
        fn default() -> Self {
            std::panic::set_hook(Box::new(|info| {
                if let Ok(mut error) = ERROR.lock() {
                    if error.is_empty() {
                        *error = info.to_string();
                    }
                }
            }));
            Guest { reducer: R::default(), input: Vec::new(), output: Vec::new() }
        }
    }

    pub type Cell<R> = RefCell<Guest<R>>;

    impl<R: Reducer> Guest<R> {
        /// Room for an input of this length, valid until the next call.
        pub fn alloc(&mut self, length: usize) -> u32 {
            self.input.clear();
            self.input.resize(length, 0);
            self.input.as_ptr() as usize as u32
        }

        /// The input is where `alloc` said, so its pointer is not needed.
        pub fn restore(&mut self) {
            self.reducer = R::default();
            check(self.reducer.restore(&self.input), "restore");
        }

        pub fn migrate(&mut self) {
            self.reducer = R::default();
            check(self.reducer.migrate(&self.input), "migrate");
        }

        pub fn apply(&mut self) -> u32 {
            let mut count = 0;
            for record in Records::new(&self.input) {
                if let Err(error) = self.reducer.apply(&record) {
                    fail(format!("record {}: {error}", record.number));
                }
                count += 1;
            }
            count
        }

        pub fn state(&mut self) -> u64 {
            self.output = self.reducer.state();
            range(&self.output)
        }

        pub fn get(&mut self) -> u64 {
            self.output = self.reducer.get(&self.input).unwrap_or_default();
            range(&self.output)
        }
    }

    pub fn content_type<R: Reducer>() -> u64 {
        range(R::CONTENT_TYPE.as_bytes())
    }

    /// The reason of the last trap.
    pub fn error() -> u64 {
        ERROR.lock().map_or(0, |error| range(error.as_bytes()))
    }

    fn range(bytes: &[u8]) -> u64 {
        ((bytes.as_ptr() as usize as u64) << 32) | bytes.len() as u64
    }

    fn check(result: Result<(), String>, what: &str) {
        if let Err(error) = result {
            fail(format!("{what}: {error}"));
        }
    }

    fn fail(reason: String) -> ! {
        if let Ok(mut error) = ERROR.lock() {
            *error = reason;
        }
        panic!("the reducer refused its input");
    }
}

/// Make a [`Reducer`] the reducer of this module. Write it once, in a crate of type `cdylib`.
#[macro_export]
macro_rules! reducer {
    ($kind:ty) => {
        const _: () = {
            thread_local! {
                static GUEST: $crate::guest::Cell<$kind> = ::core::default::Default::default();
            }

            #[no_mangle]
            extern "C" fn polynya_abi() -> u32 {
                1
            }

            #[no_mangle]
            extern "C" fn polynya_content_type() -> u64 {
                $crate::guest::content_type::<$kind>()
            }

            #[no_mangle]
            extern "C" fn polynya_error() -> u64 {
                $crate::guest::error()
            }

            #[no_mangle]
            extern "C" fn alloc(length: u32) -> u32 {
                GUEST.with(|guest| guest.borrow_mut().alloc(length as usize))
            }

            #[no_mangle]
            extern "C" fn restore(_pointer: u32, _length: u32) {
                GUEST.with(|guest| guest.borrow_mut().restore())
            }

            #[no_mangle]
            extern "C" fn migrate(_pointer: u32, _length: u32) {
                GUEST.with(|guest| guest.borrow_mut().migrate())
            }

            #[no_mangle]
            extern "C" fn apply(_pointer: u32, _length: u32) -> u32 {
                GUEST.with(|guest| guest.borrow_mut().apply())
            }

            #[no_mangle]
            extern "C" fn state() -> u64 {
                GUEST.with(|guest| guest.borrow_mut().state())
            }

            #[no_mangle]
            extern "C" fn get(_pointer: u32, _length: u32) -> u64 {
                GUEST.with(|guest| guest.borrow_mut().get())
            }
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_records() {
        let mut frame = Vec::new();
        for (number, key, value) in [
            (7u64, Some(&b"k"[..]), Some(&b"value"[..])),
            (8, None, None),
            (9, Some(&b""[..]), Some(&b""[..])),
        ] {
            frame.extend(number.to_le_bytes());
            frame.extend((-1i64).to_le_bytes());
            frame.extend(2i64.to_le_bytes());
            frame.extend(key.map_or(NONE, |key| key.len() as u32).to_le_bytes());
            frame.extend(value.map_or(NONE, |value| value.len() as u32).to_le_bytes());
            frame.extend(key.unwrap_or_default());
            frame.extend(value.unwrap_or_default());
        }
        let records: Vec<Record> = Records::new(&frame).collect();
        assert_eq!(records.len(), 3);
        assert_eq!(
            records[0],
            Record { number: 7, append_ms: -1, time_ms: 2, key: Some(b"k"), value: Some(b"value") }
        );
        assert_eq!((records[1].key, records[1].value), (None, None));
        assert_eq!((records[2].key, records[2].value), (Some(&b""[..]), Some(&b""[..])));
    }
}
