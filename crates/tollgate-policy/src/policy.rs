//! A policy, and what it says of a request.
//!
//! The order in which a request is judged is fixed: first the block list, then the allow list, then
//! whether its key is known, then the limits in the order they are written.

mod clients;
mod sender;

use std::collections::BTreeSet;

use tollgate_core::{Cost, Limit, Quota, Value};

use crate::address::CountedText;
use crate::attribute::{AttributeId, Attributes, Facts, is_secret};
use crate::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};
use crate::compile::{Changed, Compiled, Compiler};
use crate::condition::HIDDEN;
use crate::decode::{Decoder, Document, NamedFile, TenantsDraft};
use crate::index::{self, Found};
use crate::layer::Layer;
use crate::lint::Lint;
use crate::mistake::{Mistakes, Report, Source, Span, Warning, quoted};
use crate::request::{Admission, Charge, Charges, Request, Scratch, Values};
use crate::rule::{Asked, CostOf, Mode, Per, Rule};
use crate::settings::Settings;
use crate::shards::Shards;
use crate::tenants::{self, Tenancy, TenantTable};
use crate::upstream::Route;
use crate::yaml;

/// Everything a policy file says, checked, and indexed for matching.
#[derive(Clone, Debug)]
pub struct Policy {
    settings: Settings,
    attributes: Attributes,
    compiled: Compiled,
    tenants: Option<Lookup>,
    /// If some limit counts or is split by it.
    client_ip: Option<AttributeId>,
    warnings: Vec<Warning>,
}

/// How a request's tenant and tier are found.
#[derive(Clone, Debug)]
struct Lookup {
    from: AttributeId,
    tenant: AttributeId,
    tier: AttributeId,
    /// The tier of strangers; `None` refuses them.
    unknown: Option<Box<str>>,
    table: TenantTable,
}

/// Whose request it is.
struct Owner<'p> {
    /// What is different for its tenant.
    changed: &'p [Changed],
    /// It must show a key of the tenants file, and has not.
    is_refused: bool,
}

impl Policy {
    /// Reads a policy. `name` is what mistakes call the file. `read` fetches the text of a file that
    /// the policy names, by the path written there; its error ends a sentence.
    pub fn parse(
        name: &str,
        text: &str,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, Mistakes> {
        Self::parse_trying(name, text, read, &mut |_| Vec::new())
    }

    /// The same, and tries the other files that the policy names, such as certificates. `unusable`
    /// tells those that cannot be used, by the paths written in the settings, each with the end of a
    /// sentence that says why.
    pub fn parse_trying(
        name: &str,
        text: &str,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
        unusable: &mut dyn FnMut(&Settings) -> Vec<(String, String)>,
    ) -> Result<Self, Mistakes> {
        let mut report = Report::default();
        let source = if tenants::may_be_file(text) {
            Source::secret(name, text)
        } else {
            Source::new(name, text)
        };
        let parts = parse_parts(&source, read, unusable, &mut report);
        let warnings = report.finish()?;
        let Parts { document, attributes, compiled, tenants } =
            parts.expect("a policy without mistakes has all its parts");
        let is_counted = |rule: &Rule| {
            let sources = rule.per().iter().flat_map(super::rule::Per::sources);
            let by = rule.shards().map(crate::shards::Shards::by);
            sources.chain(by).any(|source| source.name() == "client_ip")
        };
        let client_ip =
            attributes.find("client_ip").filter(|_| compiled.rules.iter().any(is_counted));
        Ok(Self { settings: document.settings, tenants, client_ip, attributes, compiled, warnings })
    }

    /// What is allowed and probably not meant, in the order of the text.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The part that is about the process.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is counted, in the order of the policy: one for each rate of each limit.
    pub fn rules(&self) -> &[Rule] {
        &self.compiled.rules
    }

    /// Every limit of the policy, each once; a charge names one by its index.
    pub fn limits(&self) -> &[Limit] {
        &self.compiled.limits
    }

    /// The rate of one of the [`limits`](Self::limits) as it was written; none for a concurrency
    /// limit.
    pub fn rate(&self, limit: usize) -> Option<Quota> {
        self.compiled.rates[limit]
    }

    /// Which limit a shard of one of the [`limits`](Self::limits) has.
    pub(crate) fn share(&self, whole: usize, shards: &Shards, number: u8) -> usize {
        self.compiled.share(whole, shards, number)
    }

    /// By which limits a rule counts those who have these values, if they are of a tenant that is
    /// allowed something else.
    pub(crate) fn limits_of_tenant(&self, rule: usize, values: &[Value<'_>]) -> Vec<usize> {
        let Some(lookup) = &self.tenants else { return Vec::new() };
        let per = self.compiled.rules[rule].per.iter();
        let is_tenant = |(value, per): &(&Value<'_>, &Per)| {
            per.sources()[usize::from(value.source)].id == lookup.tenant
        };
        let tenant = values.iter().zip(per).find(is_tenant).and_then(|(value, _)| value.bytes);
        let Some(set) = tenant.and_then(|tenant| lookup.table.set_of(tenant)) else {
            return Vec::new();
        };
        let variants = self.compiled.overrides.iter().filter(|(variant, _)| variant.set == set);
        let changed = variants.flat_map(|(_, changed)| changed);
        let changed = changed.filter(|changed| changed.rule as usize == rule);
        let mut limits: Vec<usize> = changed.map(|changed| changed.limit as usize).collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// The names of all attributes the policy asks about, header names in small letters. A door
    /// need not look for others.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.attributes.names().map(|name| &**name)
    }

    /// Whether it has limits of a layer. Doors need not ask about what nothing counts.
    pub fn has_limits_of(&self, layer: Layer) -> bool {
        self.compiled.index.has(layer)
    }

    /// Where the gateway sends everything, if its first route stands for all that is asked.
    pub fn only_route(&self) -> Option<&Route> {
        self.settings.upstream.first().filter(|route| route.stands_for_all())
    }

    /// Where the gateway sends a request to `host` that asks for `path`: the first route that stands
    /// for both. The path is in the form that conditions see, the host as it was sent.
    pub fn route(&self, host: &str, path: &str) -> Option<&Route> {
        self.settings.upstream.iter().find(|route| route.stands_for(host, path))
    }

    /// How many keys the tenants file holds.
    pub fn tenant_keys(&self) -> usize {
        self.tenants.as_ref().map_or(0, |lookup| lookup.table.len())
    }

    /// Every tenant of the tenants file, each once, in its order.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.tenants.iter().flat_map(|lookup| lookup.table.tenants())
    }

    /// What applies to a request. What its limits charge is added to `charges`; nothing unless it is
    /// [`Admission::Charged`].
    ///
    /// Nothing is allocated unless more than eight limits apply, a limit counts by more than four
    /// attributes, or the request carries more than sixteen that the policy asks about.
    pub fn admit<'p: 'r, 'r>(
        &'p self,
        request: &Request<'r>,
        scratch: &'r mut Scratch,
        charges: &mut Charges<'p, 'r>,
    ) -> Admission<'p, 'r> {
        let before = charges.len();
        let mut facts = Facts::default();
        let owner = self.learn(request, &mut facts);
        if let Some(entry) = self.compiled.deny.find(request.layer, &facts) {
            return Admission::Blocked(entry);
        }
        if let Some(entry) = self.compiled.exempt.find(request.layer, &facts) {
            return Admission::Exempt(entry);
        }
        if owner.is_refused {
            return Admission::UnknownKey;
        }
        let asked = self.asked(request, &facts, &mut scratch.text);
        match self.charge(&asked, request.cost, &owner, charges) {
            Ok(()) => Admission::Charged,
            Err(rule) => {
                charges.truncate(before);
                self.bad_cost(rule, &facts)
            }
        }
    }

    /// Adds what each rule that applies charges; fails with an enforced one that cannot tell what the
    /// request costs.
    #[inline]
    fn charge<'p: 'r, 'r>(
        &'p self,
        asked: &Asked<'_, 'r>,
        caller: Cost,
        owner: &Owner<'p>,
        charges: &mut Charges<'p, 'r>,
    ) -> Result<(), &'p Rule> {
        let Compiled { index, rules, .. } = &self.compiled;
        let mut found = Found::new();
        index.find(asked.layer, asked.facts, &mut found);
        for &found in &found {
            let rule_index = index::number(found);
            let rule = &rules[rule_index];
            if !index.holds(found, asked.facts) || asked.is_endless_for(rule) {
                continue;
            }
            let told = rule.cost(asked.facts, caller);
            let cost = told.unwrap_or(caller);
            let (limit, tier) = owner.limit(rule_index, rule, asked.facts);
            charges.push(Charge { rule, rule_index, limit, tier, values: Values::new(), cost });
            let charge = charges.last_mut().expect("one was just added");
            let is_counted = rule.values(asked, &mut charge.values).is_ok();
            if is_counted && told.is_some() {
                if rule.is_sharded {
                    self.compiled.enter_shard(charge, asked);
                }
                continue;
            }
            charges.pop();
            // A limit in shadow refuses nobody.
            if is_counted && rule.mode == Mode::Enforce {
                return Err(rule);
            }
        }
        Ok(())
    }

    fn bad_cost<'p, 'r>(&'p self, rule: &'p Rule, facts: &Facts<'r>) -> Admission<'p, 'r> {
        let (id, value) = told_cost(rule, facts);
        Admission::BadCost { rule, attribute: self.attributes.name(id), value }
    }

    /// For every rule whether it applies to a request, and why not if it does not.
    pub fn explain(&self, request: &Request<'_>) -> Vec<Explanation<'_>> {
        let mut text = CountedText::EMPTY;
        let mut facts = Facts::default();
        let owner = self.learn(request, &mut facts);
        let overall = self.why_none(request.layer, &facts, &owner);
        let asked = self.asked(request, &facts, &mut text);
        let explain = |(rule_index, rule)| {
            let standing = match &overall {
                Some(reason) => Err(reason.clone()),
                None => self.standing(rule_index, rule, &asked, request.cost, &owner),
            };
            let standing = standing.unwrap_or_else(Standing::DoesNotApply);
            Explanation { rule, rule_index, standing }
        };
        self.compiled.rules.iter().enumerate().map(explain).collect()
    }

    /// Whom a request is taken for.
    pub fn caller<'p: 'r, 'r>(&'p self, request: &Request<'r>) -> Caller<'r> {
        let Some(lookup) = &self.tenants else {
            let sent = |wanted: &str| {
                let mut sent = request.attributes.iter().filter(|(name, _)| *name == wanted);
                sent.next().map(|(_, value)| *value)
            };
            return Caller {
                tenant: sent("tenant"),
                tier: sent("tier"),
                known_by: KnownBy::Sender,
            };
        };
        let mut facts = Facts::default();
        self.learn(request, &mut facts);
        let tenant = facts.value(lookup.tenant);
        let known_by = if tenant.is_some() { KnownBy::TenantsFile } else { KnownBy::Nobody };
        Caller { tenant, tier: facts.value(lookup.tier), known_by }
    }

    /// How much work finding the limits of a request is, in steps. For tests of the index: a
    /// promise about time that can be held without a clock.
    #[doc(hidden)]
    pub fn work(&self, request: &Request<'_>) -> usize {
        let mut facts = Facts::default();
        self.learn(request, &mut facts);
        let Compiled { index, exempt, deny, .. } = &self.compiled;
        let layer = request.layer;
        index.work(layer, &facts) + exempt.work(layer, &facts) + deny.work(layer, &facts)
    }

    /// The same as [`Policy::admit`] finds, by asking every limit. For tests of the index.
    #[doc(hidden)]
    pub fn rules_by_asking_each(&self, request: &Request<'_>) -> Vec<usize> {
        let explanations = self.explain(request).into_iter();
        let applies = explanations
            .filter(|explanation| matches!(explanation.standing, Standing::Applies { .. }));
        applies.map(|explanation| explanation.rule_index).collect()
    }

    /// Gathers the attributes of a request that the policy asks about, and finds out whose it is.
    fn learn<'p: 'r, 'r>(&'p self, request: &Request<'r>, facts: &mut Facts<'r>) -> Owner<'p> {
        // Before a connection says anything, it is nobody's.
        let tenants = self.tenants.as_ref().filter(|_| request.layer != Layer::Connection);
        let Some(lookup) = tenants else {
            self.add_sent(request, facts, |_| true);
            return Owner { changed: &[], is_refused: false };
        };
        // Who the caller is was looked up, so that it cannot be claimed.
        self.add_sent(request, facts, |id| id != lookup.tenant && id != lookup.tier);
        let owner = facts.value(lookup.from).and_then(|key| lookup.table.find(key));
        let mut tier = lookup.unknown.as_deref();
        let mut changed: &[Changed] = &[];
        if let Some(owner) = owner {
            facts.add(lookup.tenant, lookup.table.tenant(owner).as_bytes());
            tier = lookup.table.tier(owner).or(tier);
            let variant = lookup.table.variant(owner);
            let overrides = variant.and_then(|variant| self.compiled.overrides.get(&variant));
            changed = overrides.map_or(&[], |changed| &**changed);
        }
        if let Some(tier) = tier {
            facts.add(lookup.tier, tier.as_bytes());
        }
        Owner { changed, is_refused: owner.is_none() && lookup.unknown.is_none() }
    }

    fn add_sent<'a>(
        &self,
        request: &Request<'a>,
        facts: &mut Facts<'a>,
        wanted: impl Fn(AttributeId) -> bool,
    ) {
        for (name, value) in request.attributes {
            if let Some(id) = self.attributes.find(name).filter(|id| wanted(*id)) {
                facts.add(id, value);
            }
        }
    }

    #[inline]
    fn asked<'f, 'r>(
        &self,
        request: &Request<'_>,
        facts: &'f Facts<'r>,
        text: &'r mut CountedText,
    ) -> Asked<'f, 'r> {
        let Request { missing, end, layer, .. } = *request;
        Asked { facts, missing, end, layer, address: self.counted_address(facts, text) }
    }

    /// The text by which the client's address is counted, if that is not the one that was sent.
    fn counted_address<'r>(
        &self,
        facts: &Facts<'_>,
        scratch: &'r mut CountedText,
    ) -> Option<(AttributeId, &'r [u8])> {
        let id = self.client_ip?;
        // IPv4 in its usual form is counted as it is.
        let _ = facts.value(id).filter(|value| value.contains(&b':'))?;
        scratch.write(facts.address(id)?, self.settings.client_ip.ipv6_prefix);
        Some((id, scratch.as_bytes()))
    }

    /// Why no limit applies, if that is so.
    fn why_none(&self, layer: Layer, facts: &Facts<'_>, owner: &Owner<'_>) -> Option<String> {
        if let Some(entry) = self.compiled.deny.find(layer, facts) {
            return Some(format!("the request is denied by {} ({})", entry.text(), entry.place()));
        }
        if let Some(entry) = self.compiled.exempt.find(layer, facts) {
            return Some(format!("the request is exempt by {} ({})", entry.text(), entry.place()));
        }
        let refused = "the request is refused: it carries no key of the tenants file";
        owner.is_refused.then(|| refused.to_owned())
    }

    /// Whom a rule counts a request for and at what cost, or why it does not apply.
    fn standing(
        &self,
        rule_index: usize,
        rule: &Rule,
        asked: &Asked<'_, '_>,
        caller: Cost,
        owner: &Owner<'_>,
    ) -> Result<Standing, String> {
        let facts = asked.facts;
        if !rule.is_asked_at(asked.layer) {
            let (counted, asked) = (rule.layer().plural(), asked.layer.singular());
            return Err(format!("it counts {counted}, and this is {asked}"));
        }
        for condition in self.compiled.index.conditions(rule_index) {
            if !condition.holds(facts) {
                let secret = self.is_secret(condition.attribute);
                return Err(condition.why_not(facts, &self.attributes, secret));
            }
        }
        if asked.is_endless_for(rule) {
            return Err("it counts what is in flight, and this door never learns when a request \
                        ends"
                .to_owned());
        }
        let mut values = Values::new();
        rule.values(asked, &mut values).map_err(|lacking| {
            let sources = rule.per[lacking].sources().iter();
            let names: Vec<&str> = sources.map(super::rule::Source::name).collect();
            format!("the request has no {}, which it counts by", names.join(" or "))
        })?;
        let Some(cost) = rule.cost(facts, caller) else {
            let so = match rule.mode {
                Mode::Enforce => "the request is refused",
                Mode::Shadow => "a limit in shadow skips it",
            };
            return Err(format!("{}: {so}", self.why_no_cost(rule, facts)));
        };
        let explained = values.iter().zip(rule.per.iter()).map(|(value, per)| {
            let source = &per.sources()[usize::from(value.source)];
            let bytes = value.bytes.map(<[u8]>::to_vec);
            ExplainedValue { attribute: source.name().to_owned(), bytes, secret: value.is_secret() }
        });
        let values = explained.collect();
        let (whole, _) = owner.limit(rule_index, rule, facts);
        let Some(shards) = rule.shards() else {
            return Ok(Standing::Applies { limit: whole, values, shard: None, cost });
        };
        let number = shards.number(asked);
        let limit = self.compiled.share(whole, shards, number);
        Ok(Standing::Applies { limit, values, shard: Some(number), cost })
    }

    fn why_no_cost(&self, rule: &Rule, facts: &Facts<'_>) -> String {
        let (id, value) = told_cost(rule, facts);
        let value = if self.is_secret(id) {
            HIDDEN.to_owned()
        } else {
            quoted(&String::from_utf8_lossy(value))
        };
        let name = self.attributes.name(id);
        format!("its cost, {name}, is {value} and not a whole number from 0 to {}", u32::MAX)
    }

    fn is_secret(&self, id: AttributeId) -> bool {
        let is_key = self.tenants.as_ref().is_some_and(|lookup| lookup.from == id);
        is_key || is_secret(self.attributes.name(id))
    }
}

/// What a request says it costs under a rule that cannot read it, and where it says so.
fn told_cost<'r>(rule: &Rule, facts: &Facts<'r>) -> (AttributeId, &'r [u8]) {
    let CostOf::Attribute(attribute) = &rule.details.cost else {
        unreachable!("only what a request says can be no cost")
    };
    (*attribute, facts.value(*attribute).unwrap_or_default())
}

impl Owner<'_> {
    /// The limit a rule puts to this request, and for which of its tiers.
    #[inline]
    fn limit(&self, rule_index: usize, rule: &Rule, facts: &Facts<'_>) -> (usize, u32) {
        let (limit, tier) = rule.limit.pick_with_tier(facts);
        let changed = self.changed.iter().find(|changed| changed.rule as usize == rule_index);
        (changed.map_or(limit, |changed| changed.limit) as usize, tier)
    }
}

/// Whom a request is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller<'r> {
    /// Its tenant, if it has one.
    pub tenant: Option<&'r [u8]>,
    /// Its tier, if it has one.
    pub tier: Option<&'r [u8]>,
    /// Who says so.
    pub known_by: KnownBy,
}

/// Who says whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// The tenants file, where its key is.
    TenantsFile,
    /// Nobody: it carries no key of the tenants file, and its tier is what the policy gives to all
    /// of those.
    Nobody,
    /// Whoever sent it: the policy has no tenants.
    Sender,
}

/// What one rule says of a request.
#[derive(Clone, Debug)]
pub struct Explanation<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Which of [`Policy::rules`] that is.
    pub rule_index: usize,
    /// Whether it applies.
    pub standing: Standing,
}

/// Whether a rule applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Applies {
        /// How much is allowed: which of [`Policy::limits`].
        limit: usize,
        /// Whom it is counted for.
        values: Vec<ExplainedValue>,
        /// On which of its shards, if it is split.
        shard: Option<u8>,
        /// What the request costs.
        cost: Cost,
    },
    /// It does not, for this reason.
    DoesNotApply(String),
}

/// One of the values a request is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedValue {
    /// The attribute it was taken from; the first of those tried if there is none.
    pub attribute: String,
    /// The value, or nothing if the request has none.
    pub bytes: Option<Vec<u8>>,
    /// Whether it must be shown as a hash only.
    pub secret: bool,
}

/// What a policy is put together from.
struct Parts {
    document: Document,
    attributes: Attributes,
    compiled: Compiled,
    tenants: Option<Lookup>,
}

/// Nothing if the text could not even be read; otherwise parts that are complete if the report is
/// clean.
fn parse_parts(
    source: &Source<'_>,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
    unusable: &mut dyn FnMut(&Settings) -> Vec<(String, String)>,
    report: &mut Report,
) -> Option<Parts> {
    if source.text.len() > POLICY_BYTES_MAX {
        let sentence = too_long("the policy", source.text.len(), POLICY_BYTES_MAX);
        report.mistake(source, Span::START, sentence);
        return None;
    }
    let root = yaml::read(source, report).ok()?;
    if let Some(keys) = root.field("keys") {
        // What was said until now may show one of them.
        *report = Report::default();
        let source = Source::secret(source.name, source.text);
        let sentence = "this is a tenants file; name it under tenants.file of a policy";
        report.mistake(&source, keys.span, sentence);
        return None;
    }
    let mut decoder = Decoder::new(source, report);
    let mut document = decoder.document(&root);
    let mut attributes = decoder.attributes;
    let unusable: BTreeSet<_> = unusable(&document.settings).into_iter().collect();
    for NamedFile { owner, name } in &document.files {
        for (_, why) in unusable.iter().filter(|(file, _)| *file == name.text) {
            let sentence = format!("{owner}: {} {why}", quoted(&name.text));
            report.mistake(source, name.span, sentence);
        }
    }
    let Some(draft) = document.tenants.take() else {
        if document.has_tenants {
            // Without knowing the tiers, more would be called a mistake than is one.
            return None;
        }
        let compiled = finish(source, report, &attributes, &mut document, None);
        return Some(Parts { document, attributes, compiled, tenants: None });
    };
    let text = read_tenants(source, &draft, read, report)?;
    let text = Source::secret(&draft.file.text, &text);
    let file = tenants::read(&text, report);
    let (tenant, tier) = (attributes.intern("tenant"), attributes.intern("tier"));
    let tenancy = Tenancy { draft: &draft, file: &file, source: &text };
    let compiled = finish(source, report, &attributes, &mut document, Some(tenancy));
    let unknown = tenancy.strangers().map(Box::from);
    let tenants = Some(Lookup { from: draft.from, tenant, tier, unknown, table: file.table });
    Some(Parts { document, attributes, compiled, tenants })
}

fn finish(
    policy: &Source<'_>,
    report: &mut Report,
    attributes: &Attributes,
    document: &mut Document,
    tenants: Option<Tenancy<'_>>,
) -> Compiled {
    if report.is_clean() {
        Lint { policy, report, attributes, document, tenants }.look();
    }
    Compiler::new(policy, report, attributes, tenants).compile(document)
}

fn read_tenants(
    source: &Source<'_>,
    draft: &TenantsDraft,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
    report: &mut Report,
) -> Option<String> {
    let file = &draft.file;
    let text = match read(&file.text) {
        Ok(text) => text,
        Err(error) => {
            let sentence = format!("tenants: {} cannot be read: {error}", quoted(&file.text));
            report.mistake(source, file.span, sentence);
            return None;
        }
    };
    if text.len() > TENANTS_BYTES_MAX {
        let name = format!("tenants: {}", quoted(&file.text));
        report.mistake(source, file.span, too_long(&name, text.len(), TENANTS_BYTES_MAX));
        return None;
    }
    Some(text)
}

fn too_long(what: &str, bytes: usize, most: usize) -> String {
    format!("{what} is {} MiB long; the most is {} MiB", bytes.div_ceil(1 << 20), most >> 20)
}
