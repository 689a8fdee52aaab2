//! Which of many sets of conditions hold for a request, without asking each.
//!
//! Every set is filed under the one of its conditions that fewest others share: a value, a path
//! pattern, a host, a block of addresses, or the mere presence of an attribute. A request is looked
//! up by what it carries, and only what is found that way is asked for its other conditions. So a
//! request costs what the sets it nearly fulfils cost, not what the whole policy does.
//!
//! What must stay true: [`Index::find`] finds every set of a layer all of whose conditions hold, in the
//! order in which they were given, and [`Index::holds`] says of exactly those that they do. Sets of
//! other layers are filed elsewhere and cost nothing.

use std::collections::HashMap;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::address::{Cidr, masked};
use crate::attribute::{AttributeId, Facts};
use crate::condition::{Condition, HostPattern, Test, Word, canonical_host, canonical_method};
use crate::hash::WordMap;
use crate::layer::Layer;
use crate::path::{PathTree, Pattern, without_slash};
use crate::words::WordFile;

/// Sets of conditions, filed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Every set, whole.
    sets: Vec<Vec<Condition>>,
    /// Of every set what finding it does not prove.
    rest: Vec<SmallVec<[Condition; 1]>>,
    /// By layer.
    cabinets: [Cabinet; Layer::ALL.len()],
}

/// Conditions that must all hold, and the layers where they are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) layers: SmallVec<[Layer; 2]>,
}

/// The sets of one layer.
#[derive(Clone, Debug, Default)]
struct Cabinet {
    /// Sets that cannot be filed: they ask for nothing, or only for what is not there.
    unfiled: Vec<u32>,
    /// By attribute; none if nothing is filed.
    files: Vec<File>,
}

/// Everything filed under one attribute.
#[derive(Clone, Debug, Default)]
struct File {
    /// Whether anything is.
    is_used: bool,
    present: Vec<u32>,
    values: WordFile,
    methods: WordFile,
    hosts: WordFile,
    below_hosts: WordFile,
    /// Paths without wildcards are found in one step.
    literal_paths: WordFile,
    paths: PathTree,
    /// By length of the prefix, then by what it is.
    blocks: Vec<(u8, WordMap<IpAddr, Vec<u32>>)>,
}

/// What was found: numbers of sets, doubled, and one more for a set that has conditions left to
/// ask. So the others need not be fetched.
pub(crate) type Found = SmallVec<[u32; 32]>;

impl Index {
    pub(crate) fn new(sets: Vec<Set>, attributes: usize) -> Self {
        let popularity = Popularity::of(&sets);
        let rarest = |set: &Set| popularity.rarest(&set.conditions);
        let rarest: Vec<Option<usize>> = sets.iter().map(rarest).collect();
        drop(popularity);
        let mut index = Self::default();
        for (number, (Set { conditions, layers }, rarest)) in
            sets.into_iter().zip(rarest).enumerate()
        {
            let has_rest = conditions.len() > usize::from(rarest.is_some());
            let number = (number as u32) << 1 | u32::from(has_rest);
            for layer in layers {
                let cabinet = &mut index.cabinets[layer as usize];
                match rarest {
                    Some(rarest) => cabinet.file(number, &conditions[rarest], attributes),
                    None => cabinet.unfiled.push(number),
                }
            }
            let rest = conditions.iter().enumerate().filter(|(number, _)| Some(*number) != rarest);
            index.rest.push(rest.map(|(_, condition)| condition.clone()).collect());
            index.sets.push(conditions);
        }
        index
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    pub(crate) fn conditions(&self, set: usize) -> &[Condition] {
        &self.sets[set]
    }

    /// Whether there are sets of a layer.
    pub(crate) fn has(&self, layer: Layer) -> bool {
        let Cabinet { unfiled, files } = &self.cabinets[layer as usize];
        !unfiled.is_empty() || !files.is_empty()
    }

    /// The first set of a layer all of whose conditions hold.
    pub(crate) fn first(&self, layer: Layer, facts: &Facts<'_>) -> Option<usize> {
        let mut found = Found::new();
        self.find(layer, facts, &mut found);
        let holds = found.iter().find(|found| self.holds(**found, facts));
        holds.map(|found| number(*found))
    }

    /// How much work a request makes: sets to ask, and steps through the trees of paths.
    pub(crate) fn work(&self, layer: Layer, facts: &Facts<'_>) -> usize {
        let mut found = Found::new();
        let steps = self.find(layer, facts, &mut found);
        found.len() + steps
    }

    /// Finds the sets of a layer that may hold, in order, each once; whether one does,
    /// [`Index::holds`] tells. Answers how many steps through trees of paths it took.
    pub(crate) fn find(&self, layer: Layer, facts: &Facts<'_>, found: &mut Found) -> usize {
        let Cabinet { unfiled, files } = &self.cabinets[layer as usize];
        let mut steps = 0;
        unfiled.iter().for_each(|number| found.push(*number));
        for fact in facts.iter() {
            let Some(file) = files.get(fact.id.0 as usize).filter(|file| file.is_used) else {
                continue;
            };
            steps += file.look_up(fact.value, found);
            if !file.blocks.is_empty()
                && let Some(address) = facts.address(fact.id)
            {
                file.look_up_address(address, found);
            }
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        steps
    }

    /// Whether a set that was found holds.
    #[inline]
    pub(crate) fn holds(&self, found: u32, facts: &Facts<'_>) -> bool {
        let has_rest = found & 1 != 0;
        !has_rest || self.rest[number(found)].iter().all(|condition| condition.holds(facts))
    }
}

impl Cabinet {
    fn file(&mut self, number: u32, condition: &Condition, attributes: usize) {
        if self.files.is_empty() {
            self.files = vec![File::default(); attributes];
        }
        let file = &mut self.files[condition.attribute.0 as usize];
        file.is_used = true;
        match &condition.test {
            Test::OneOf(words) => words.iter().for_each(|word| file.values.file(word, number)),
            Test::Method(words) => words.iter().for_each(|word| file.methods.file(word, number)),
            Test::Path(patterns) => {
                for pattern in patterns.iter().flat_map(Pattern::forms) {
                    match pattern.literal() {
                        Some(path) => file.literal_paths.file(path, number),
                        None => file.paths.insert(pattern, number),
                    }
                }
            }
            Test::Host(hosts) => {
                for HostPattern { name, below } in hosts {
                    let hosts = if *below { &mut file.below_hosts } else { &mut file.hosts };
                    hosts.file(name, number);
                }
            }
            Test::Cidr(blocks) => {
                blocks.blocks().iter().for_each(|block| file.file_block(block, number));
            }
            Test::Present => file.present.push(number),
            Test::Absent | Test::Not(_) => unreachable!("not a condition to file under"),
        }
    }
}

/// The number of a set that was found.
#[inline]
pub(crate) fn number(found: u32) -> usize {
    (found >> 1) as usize
}

impl File {
    fn file_block(&mut self, block: &Cidr, number: u32) {
        let length = block.prefix();
        let place = self.blocks.partition_point(|(other, _)| *other < length);
        if self.blocks.get(place).is_none_or(|(other, _)| *other != length) {
            self.blocks.insert(place, (length, WordMap::default()));
        }
        self.blocks[place].1.entry(block.network()).or_default().push(number);
    }

    fn look_up(&self, value: &[u8], found: &mut Found) -> usize {
        let mut steps = 0;
        self.present.iter().for_each(|number| found.push(*number));
        if !self.values.is_empty() {
            self.values.look_up(value, |number| found.push(number));
        }
        if !self.methods.is_empty() {
            self.methods.look_up(&canonical_method(value), |number| found.push(number));
        }
        if !self.literal_paths.is_empty() {
            steps += 1;
            self.literal_paths.look_up(without_slash(value), |number| found.push(number));
        }
        if !self.paths.is_empty() {
            steps += self.paths.find(value, |numbers| found.extend_from_slice(numbers));
        }
        if !self.hosts.is_empty() || !self.below_hosts.is_empty() {
            self.look_up_host(&canonical_host(value), found);
        }
        steps
    }

    fn look_up_host(&self, host: &[u8], found: &mut Found) {
        self.hosts.look_up(host, |number| found.push(number));
        if self.below_hosts.is_empty() {
            return;
        }
        let dots = host.iter().enumerate().filter(|(place, byte)| **byte == b'.' && *place > 0);
        for (place, _) in dots {
            self.below_hosts.look_up(&host[place + 1..], |number| found.push(number));
        }
    }

    fn look_up_address(&self, address: IpAddr, found: &mut Found) {
        let width = if address.is_ipv4() { 32 } else { 128 };
        for (length, networks) in self.blocks.iter().take_while(|(length, _)| *length <= width) {
            if let Some(numbers) = networks.get(&masked(address, *length)) {
                found.extend_from_slice(numbers);
            }
        }
    }
}

/// How many sets ask for the same thing.
struct Popularity<'c> {
    asked: HashMap<(AttributeId, Thing<'c>), u32>,
}

#[derive(PartialEq, Eq, Hash)]
enum Thing<'c> {
    Word(&'c Word),
    Path(&'c Pattern),
    Host(&'c HostPattern),
    Block(Cidr),
    Presence,
}

impl<'c> Popularity<'c> {
    fn of(sets: &'c [Set]) -> Self {
        let mut asked = HashMap::new();
        for condition in sets.iter().flat_map(|set| &set.conditions) {
            for thing in things(&condition.test) {
                *asked.entry((condition.attribute, thing)).or_insert(0) += 1;
            }
        }
        Self { asked }
    }

    /// The condition to file a set under: the one that fewest others would be found by as well.
    fn rarest(&self, conditions: &[Condition]) -> Option<usize> {
        let ranked = conditions.iter().enumerate().filter_map(|(number, condition)| {
            let rank = rank(&condition.test)?;
            let shared = things(&condition.test)
                .into_iter()
                .filter_map(|thing| self.asked.get(&(condition.attribute, thing)))
                .max();
            Some((is_broad(&condition.test), shared.copied().unwrap_or(0), rank, number))
        });
        ranked.min().map(|(.., number)| number)
    }
}

/// Among equally shared conditions the one that strangers fulfil least often by chance comes
/// first; `None` for what a request cannot be looked up by.
fn rank(test: &Test) -> Option<u32> {
    match test {
        Test::OneOf(_) => Some(0),
        Test::Path(_) => Some(1),
        Test::Host(_) => Some(2),
        Test::Cidr(_) => Some(3),
        Test::Method(_) => Some(4),
        Test::Present => Some(5),
        Test::Absent | Test::Not(_) => None,
    }
}

/// Whether nearly every request that has the attribute fulfils it, however few sets ask for it.
fn is_broad(test: &Test) -> bool {
    match test {
        Test::Path(patterns) => patterns.iter().any(Pattern::is_wordless),
        Test::Cidr(blocks) => blocks.blocks().iter().any(|block| block.prefix() == 0),
        Test::Present => true,
        _ => false,
    }
}

fn things(test: &Test) -> Vec<Thing<'_>> {
    match test {
        Test::OneOf(words) | Test::Method(words) => words.iter().map(Thing::Word).collect(),
        Test::Path(patterns) => patterns.iter().map(Thing::Path).collect(),
        Test::Host(hosts) => hosts.iter().map(Thing::Host).collect(),
        Test::Cidr(blocks) => blocks.blocks().iter().copied().map(Thing::Block).collect(),
        Test::Present => vec![Thing::Presence],
        Test::Absent | Test::Not(_) => Vec::new(),
    }
}
