//! A shopping cart: records such as `{"item": "book", "count": 2}` become the counts of the items.
//! A negative count takes some out.

use polynya_reducer::{json, Record, Reducer};
use std::collections::btree_map::{BTreeMap, Entry};

#[derive(Default)]
struct Cart(BTreeMap<String, i64>);

impl Cart {
    fn add(&mut self, item: String, count: i64) -> Result<(), String> {
        match self.0.entry(item) {
            Entry::Vacant(_) if count == 0 => (),
            Entry::Vacant(new) => {
                new.insert(count);
            }
            Entry::Occupied(mut old) => {
                *old.get_mut() = old.get().checked_add(count).ok_or("the count is too large")?;
                if *old.get() == 0 {
                    old.remove();
                }
            }
        }
        Ok(())
    }
}

impl Reducer for Cart {
    const CONTENT_TYPE: &'static str = "application/json";

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        for (item, count) in json::members(state).ok_or("the state is no JSON object")? {
            self.add(item.into_owned(), json::number(count).ok_or("a count is no number")?)?;
        }
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), String> {
        let value = record.value.ok_or("it has no value")?;
        let item = json::string(value, "item").ok_or("it has no item")?;
        let count = json::integer(value, "count").ok_or("it has no count")?;
        self.add(item.into_owned(), count)
    }

    /// A JSON object in the order of its items.
    fn state(&self) -> Vec<u8> {
        let mut out = b"{".to_vec();
        for (at, (item, count)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            json::write_string(&mut out, item);
            out.extend(format!(":{count}").as_bytes());
        }
        out.push(b'}');
        out
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let item = std::str::from_utf8(key).ok()?;
        Some(self.0.get(item)?.to_string().into_bytes())
    }
}

polynya_reducer::reducer!(Cart);
