//! Who sent a request that is refused before anything is counted.

use tollgate_core::Value;

use crate::attribute::{AttributeId, Facts};
use crate::policy::Policy;
use crate::request::{Admission, Request};

const ADDRESS: &str = "client_ip";

impl Policy {
    /// What is known of the sender of a request that is blocked or has no known key, by the names of
    /// attributes: what the entry of the `deny` list asks about, or the key; and the address.
    pub fn sender<'p: 'r, 'r>(
        &'p self,
        request: &Request<'r>,
        admission: &Admission<'p, 'r>,
    ) -> Vec<(&'p str, Value<'r>)> {
        let asked: &[AttributeId] = match (admission, &self.tenants) {
            (Admission::Blocked(entry), _) => &entry.attributes,
            (Admission::UnknownKey, Some(lookup)) => std::slice::from_ref(&lookup.from),
            _ => return Vec::new(),
        };
        let mut facts = Facts::default();
        self.learn(request, &mut facts);
        let known = asked.iter().filter_map(|&id| {
            let bytes = facts.value(id)?;
            let value = if self.is_secret(id) { Value::secret(bytes) } else { Value::new(bytes) };
            Some((&**self.attributes.name(id), value))
        });
        let mut known: Vec<(&str, Value<'_>)> = known.collect();
        if known.iter().all(|(name, _)| *name != ADDRESS) {
            let sent = request.attributes.iter().find(|(name, _)| *name == ADDRESS);
            known.extend(sent.map(|(_, address)| (ADDRESS, Value::new(address))));
        }
        known
    }
}
