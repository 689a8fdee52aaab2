//! Names of attributes, and the attributes of one request.
//!
//! A policy asks about a handful of names. Each gets a number when the policy is read, so that a
//! request's names are looked up once and everything after that compares numbers.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::address::read_address;
use crate::hash::WordMap;

/// Which of the policy's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttributeId(pub(crate) u32);

/// Every name the policy asks about, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    names: Vec<Arc<str>>,
    numbers: WordMap<Arc<str>, AttributeId>,
}

/// So many names are compared one after the other more quickly than one is hashed.
const FEW: usize = 16;

impl Attributes {
    /// The number of a name, given to it now if it has none yet. Header names lose their capitals:
    /// they are the same name to everybody.
    pub(crate) fn intern(&mut self, name: &str) -> AttributeId {
        let name = canonical(name);
        if let Some(id) = self.numbers.get(&*name) {
            return *id;
        }
        let id = AttributeId(self.names.len() as u32);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.numbers.insert(name, id);
        id
    }

    /// The number of a name that the policy asks about.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<AttributeId> {
        let found = self.find_exact(name);
        // Doors send header names in small letters; a caller of the API may not think of it.
        if found.is_none() && name.starts_with("header:") && name.contains(is_capital) {
            return self.find_exact(&canonical(name));
        }
        found
    }

    #[inline]
    fn find_exact(&self, name: &str) -> Option<AttributeId> {
        if self.names.len() > FEW {
            return self.numbers.get(name).copied();
        }
        let number = self.names.iter().position(|known| **known == *name)?;
        Some(AttributeId(number as u32))
    }

    pub(crate) fn name(&self, id: AttributeId) -> &Arc<str> {
        &self.names[id.0 as usize]
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.names.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

fn is_capital(letter: char) -> bool {
    letter.is_ascii_uppercase()
}

fn canonical(name: &str) -> String {
    if name.starts_with("header:") { name.to_ascii_lowercase() } else { name.to_owned() }
}

/// Where the value of an attribute comes from, as far as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Sent by the client, which may send another one every time.
    Client,
    /// The address the client connects from.
    Address,
    /// Said by a caller of the API, or found by us.
    Trusted,
}

impl Origin {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "client_ip" => Self::Address,
            "method" | "path" | "host" => Self::Client,
            _ if is_secret(name) || name.starts_with("query:") => Self::Client,
            _ => Self::Trusted,
        }
    }
}

/// Whether the attribute's values may be credentials and must be shown as a hash.
pub(crate) fn is_secret(name: &str) -> bool {
    name.starts_with("header:") || name.starts_with("cookie:")
}

/// The attributes of one request that the policy asks about.
///
/// A short list that is searched from the front: a request has few, and reading past ten numbers
/// is quicker than any table over all the names of the policy.
#[derive(Debug, Default)]
pub(crate) struct Facts<'r> {
    list: SmallVec<[Fact<'r>; 16]>,
    /// The last value that was read as an address: several conditions may ask for the same one.
    address: Cell<Option<(AttributeId, Option<IpAddr>)>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fact<'r> {
    pub(crate) id: AttributeId,
    pub(crate) value: &'r [u8],
}

impl<'r> Facts<'r> {
    /// Adds a fact, unless there is one of that name.
    #[inline]
    pub(crate) fn add(&mut self, id: AttributeId, value: &'r [u8]) {
        if self.value(id).is_none() {
            self.list.push(Fact { id, value });
        }
    }

    #[inline]
    pub(crate) fn value(&self, id: AttributeId) -> Option<&'r [u8]> {
        self.list.iter().find(|fact| fact.id == id).map(|fact| fact.value)
    }

    /// The value as an address, if it is one.
    pub(crate) fn address(&self, id: AttributeId) -> Option<IpAddr> {
        if let Some((_, address)) = self.address.get().filter(|(known, _)| *known == id) {
            return address;
        }
        let address = self.value(id).and_then(read_address);
        self.address.set(Some((id, address)));
        address
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Fact<'r>> {
        self.list.iter()
    }
}
