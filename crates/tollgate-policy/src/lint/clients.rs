//! Limits that count all clients as one, because nothing that they count by is known of a client.
//!
//! Doors that face clients, the gateway and forward-auth, know a request and whose key it carries.
//! What else a limit may ask about, only callers of the API say. A limit that no client's request can
//! meet counts no client, however it counts.

use tollgate_core::Algorithm;

use super::Lint;
use crate::attribute::{AttributeId, Origin};
use crate::condition::Condition;
use crate::decode::LimitDraft;
use crate::layer::Layer;
use crate::mistake::WarningCode;

impl Lint<'_, '_> {
    /// Whether at a door that faces clients all would share one count, because only a tenants
    /// section could tell them apart.
    pub(super) fn no_tenants(&mut self, limit: &LimitDraft) {
        let listen = &self.document.settings.listen;
        // Forward-auth, a part of the http door, asks about requests, and skips limits of those at
        // work.
        let is_asked_at_http = limit.layer == Layer::Request
            && limit.algorithm != Algorithm::Concurrency
            && (!listen.is_written || listen.http.is_some());
        let faces_clients = is_asked_at_http || listen.gateway.is_some();
        let tells_apart =
            limit.per.iter().any(|(_, sources)| sources.iter().any(|id| !self.is_looked_up(*id)));
        if self.tenants.is_some() || !faces_clients || tells_apart || !self.meets_clients(limit) {
            return;
        }
        let Some((span, sources)) = limit.per.first() else { return };
        let sentence = format!(
            "{} counts by {}, which only a caller of the API can say without a tenants section: at \
             HTTP doors nobody has one, and all share one count",
            limit.owner(),
            self.attributes.name(sources[0])
        );
        self.warn(*span, WarningCode::NoTenants, sentence);
    }

    /// Whether the gateway knows nothing that a limit could tell its clients apart by. Tenants are
    /// spoken of elsewhere.
    pub(super) fn gateway_cannot_tell(&mut self, limit: &LimitDraft) {
        if limit.layer != Layer::Request || !self.has_gateway() || !self.meets_clients(limit) {
            return;
        }
        let is_unknown = |id: &AttributeId| self.is_never_there(*id) && !self.is_looked_up(*id);
        let unknown = limit.per.iter().find(|(_, sources)| sources.iter().all(is_unknown));
        let mut all = limit.per.iter().flat_map(|(_, sources)| sources);
        let (false, Some((span, sources))) = (all.any(|id| self.is_of_client(*id)), unknown) else {
            return;
        };
        let (owner, name) = (limit.owner(), self.attributes.name(sources[0]));
        let sentence = format!(
            "{owner} counts by {name}, which only a caller of the API can say: at the gateway nobody \
             has one, and clients are not told apart"
        );
        self.warn(*span, WarningCode::GatewayCannotTell, sentence);
    }

    /// Whether the gateway is open.
    fn has_gateway(&self) -> bool {
        let settings = &self.document.settings;
        let is_open = settings.listen.gateway.is_some() || !settings.listen.is_written;
        is_open && !settings.upstream.is_empty()
    }

    /// Whether the request of a client may be one that a limit asks for.
    fn meets_clients(&self, limit: &LimitDraft) -> bool {
        let may_hold = |Condition { attribute, test }: &Condition| {
            (!self.is_never_there(*attribute) && test.may_hold_of_some())
                || (!self.is_always_there(*attribute) && test.holds_of_none())
        };
        // Who cannot show a key is a stranger.
        let are_refused = self.tenants.is_some_and(|tenants| {
            tenants.strangers().is_none() && self.is_never_there(tenants.draft.from)
        });
        !are_refused && limit.when.iter().all(may_hold)
    }

    /// Whether every request of a client that gets as far as limits has the attribute.
    fn is_always_there(&self, id: AttributeId) -> bool {
        let refuses = self.tenants.filter(|tenants| tenants.strangers().is_none());
        match &**self.attributes.name(id) {
            "method" | "path" | "client_ip" => true,
            "tenant" => refuses.is_some(),
            "tier" => self.tenants.is_some_and(|tenants| {
                tenants.strangers().is_some() || !tenants.file.has_tierless_key
            }),
            _ => refuses.is_some_and(|tenants| tenants.draft.from == id),
        }
    }

    /// Whether only a caller of the API can say it.
    fn is_never_there(&self, id: AttributeId) -> bool {
        let is_said = Origin::of(self.attributes.name(id)) == Origin::Trusted;
        is_said && !(self.is_looked_up(id) && self.tenants.is_some())
    }

    /// Whether it is found by the key that a request carries.
    fn is_looked_up(&self, id: AttributeId) -> bool {
        matches!(&**self.attributes.name(id), "tenant" | "tier")
    }

    /// Whether clients may differ in it, and not only what they ask for.
    fn is_of_client(&self, id: AttributeId) -> bool {
        match &**self.attributes.name(id) {
            "method" | "path" | "host" | "tier" => false,
            // Strangers have none, and there are many of them.
            "tenant" => self.tenants.is_some_and(|tenants| tenants.strangers().is_none()),
            _ => !self.is_never_there(id),
        }
    }
}
