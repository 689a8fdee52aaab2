//! The table of states: one array, no pointers, no lock around it.
//!
//! A slot is four words: the key's fingerprint and its state. Who takes it leaves a mark in place of its
//! last word, so a decision about a known key waits for nobody but another decision about the same key,
//! and writes to one cache line; only who is not in its home
//! group takes the first slot of that for a moment, to see whose it is. Slots come in groups of four,
//! which are two cache lines; a key lives in its home group, or in the next that had room, which in a
//! large table is the one behind it, nearly always. All four are
//! compared at once, without a branch that the processor could guess wrong, and little is done with what
//! comes of it: while it waits for a key's memory the processor looks a few hundred instructions ahead,
//! and if the next key's address is among them both wait together. Most of what a decision costs is that
//! wait.
//!
//! The array is cut into shards by the first bits of the fingerprint's second half, each an open-addressed table
//! of its own. To grow, the shards are moved apart, from the last to the first: where one goes,
//! the ones that were there have already left. One shard moves at a time, a little of the work
//! with every new key, and where they are is told by one word. Nothing is ever freed, so whoever
//! reads a slot that has just been moved reads another key's fingerprint, or none, and looks
//! again.
//!
//! What must stay true:
//!
//! - A slot is written only by whoever holds it, but for the mark, which whoever comes too late writes
//!   over itself; and believed only by whoever read it while holding it.
//! - Which keys are in a shard, and where, changes only under the shard's lock. Who did not find a
//!   key without that lock must look again with it before the key counts as unknown.
//! - Nobody waits for a shard's lock while holding a slot, and nobody who holds a shard's lock holds
//!   two slots at a time. So slots are taken in ascending order or singly, and no circle of waiters
//!   can close.
//! - Between a key's home group and the key's own, every group is full.

use std::hint::select_unpredictable;
use std::{fmt, io};

use tollgate_core::Word;

use crate::bounds::{LIMITS_MAX, SHARD_SLOTS_MAX, SHARD_SLOTS_MIN, VICTIMS_LOOKED_AT};
use crate::fingerprint::Fingerprint;
use crate::memory::Reserved;
use crate::pages::{self, Pages};
use crate::sync::{self, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, spin};
use crate::upkeep::Upkeep;

/// What is kept of one key: the number of the limit its state was written under, and the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) limit: u32,
    pub(crate) word: Word,
}

/// The number of a limit as it lies in the states that were written under it, above their words. Worked out when a
/// limit is enrolled, so that a decision need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(Packed);

/// All states of a store.
pub(crate) struct Table {
    /// All groups, and one more that is never used, so that each has one behind it.
    pages: Pages,
    shards: Box<[Mutex<Shard>]>,
    /// See [`Layout`].
    layout: AtomicU64,
    /// How many groups there are, if all shards are of one size; none while the table grows. With
    /// this alone a key's home is found in one step. It does not change together with the layout, and
    /// so is only a hint.
    groups: AtomicUsize,
    /// Held by whoever moves shards.
    moving: Mutex<()>,
    keys: AtomicUsize,
}

/// What is known of one shard under its lock.
pub(crate) struct Shard {
    index: usize,
    keys: usize,
}

/// A slot that is held. Dropping it lets go, and writes what was written to it.
pub(crate) struct Locked<'t> {
    slot: Slot<'t>,
    kept: Packed,
}

/// A record as it lies in the state of a slot that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    low: u64,
    high: u64,
}

/// The group where a key would like to be, or would have before shards moved, and the one behind it, where most are
/// that had to pass it by: a hint, as all that is read without a lock.
#[derive(Clone, Copy)]
pub(crate) struct Home<'t>(&'t [Group; 2]);

/// There is no slot for another key: the table must grow, or forget one.
#[derive(Debug)]
pub(crate) struct Crowded;

/// Slots that are compared at once.
const GROUP: usize = 4;

/// A cache line of fingerprints, then one of states. Decisions change states alone, so that a core that
/// looks for a key takes nothing away from one that decides about its neighbours.
type Group = [Pair; 2 * GROUP];

const GROUP_BYTES: usize = size_of::<Group>();

/// A table of no more groups than this, 1 MiB, is at hand in a core's own cache.
const NEAR_GROUPS: usize = (1 << 20) / GROUP_BYTES;

/// Two words that are read and written together.
type Pair = [AtomicU64; 2];

/// Where one key is. The upper bits of the state's halves, which the core leaves free, hold the number
/// of its limit; the last of them is set only in [`HELD`].
#[derive(Clone, Copy)]
struct Slot<'t> {
    fingerprint: &'t Pair,
    state: &'t Pair,
}

pub(crate) const SLOT_BYTES: usize = GROUP_BYTES / GROUP;

const FIRST: usize = 0;
const SECOND: usize = 1;
const LOW: usize = 0;
const HIGH: usize = 1;

/// What stands for the last word of a slot while somebody holds it: no record has this bit.
const HELD: u64 = 1 << 63;
const HALF: u64 = (1 << Word::HALF_BITS) - 1;
const LIMIT_BITS_LOW: u32 = 64 - Word::HALF_BITS;
const LIMIT_BITS_HIGH: u32 = LIMIT_BITS_LOW - 1;

const _: () = assert!(1 << (LIMIT_BITS_LOW + LIMIT_BITS_HIGH) == LIMITS_MAX);
const _: () = assert!(SHARD_SLOTS_MIN.is_multiple_of(GROUP) && SHARD_SLOTS_MIN > GROUP);
const _: () = assert!(SHARD_SLOTS_MAX < 1 << 16, "a layout keeps 16 bits for it");

impl Table {
    /// A table that can grow to `max_bytes`. Memory is reserved now and committed as it is used.
    pub(crate) fn new(max_bytes: usize) -> io::Result<Self> {
        let slots_max = max_bytes / SLOT_BYTES;
        let shards = slots_max.div_ceil(SHARD_SLOTS_MAX).next_power_of_two();
        let slots = SHARD_SLOTS_MIN;
        let layout = Layout { slots, slots_if_moved: slots, unmoved: 0 };
        let shard = |index| Mutex::new(Shard { index, keys: 0 });
        let bytes = slots_max.max(shards * slots) * SLOT_BYTES + GROUP_BYTES;
        Ok(Self {
            pages: Pages::reserve(bytes / size_of::<AtomicU64>())?,
            shards: (0..shards).map(shard).collect(),
            layout: AtomicU64::new(layout.packed()),
            groups: AtomicUsize::new(shards * slots / GROUP),
            moving: Mutex::new(()),
            keys: AtomicUsize::new(0),
        })
    }

    /// Keys that have a slot, vacant ones that nobody missed included.
    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Bytes of the array that are in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes_under(self.layout())
    }

    /// Where to look for `key` first, with its memory on the way, to be written. Of a large table also
    /// that of the next group, where one key in ten is; of a small one that is near anyway, unless
    /// another core has it, which would only have to get it back.
    #[inline(always)]
    pub(crate) fn fetch(&self, key: Fingerprint) -> Home<'_> {
        // Shards of one size are one table: the bits that choose the shard and the ones behind them
        // choose the group together.
        let count = self.groups.load(Ordering::Relaxed);
        let index = match count {
            0 => self.place_of(key).home(key) / GROUP,
            count => ((u128::from(key.second) * count as u128) >> 64) as usize,
        };
        let home = self.groups()[index..index + 2].first_chunk().expect("each has one behind it");
        let start = &home[0][0][FIRST];
        pages::fetch(start, 0..GROUP_BYTES / 2);
        pages::fetch_to_write(start, GROUP_BYTES / 2..GROUP_BYTES);
        if count > NEAR_GROUPS {
            pages::fetch(start, GROUP_BYTES..2 * GROUP_BYTES);
        }
        Home(home)
    }

    /// Where `key` is, if it is known: a hint that [`Table::lock_at`] checks.
    pub(crate) fn find(&self, key: Fingerprint) -> Option<usize> {
        let place = self.place_of(key);
        let mut group = place.home(key);
        for _ in 0..place.slots / GROUP {
            if let Some(found) = position(self.group(group), key) {
                return Some(group + found);
            }
            if !self.is_full(group) {
                return None;
            }
            group = place.after(group);
        }
        None
    }

    /// The slot at `index`, locked, if it still holds `key`.
    pub(crate) fn lock_at(&self, index: usize, key: Fingerprint) -> Option<Locked<'_>> {
        Locked::new(self.slot(index)).of(key)
    }

    /// The lock of the shard that `key` belongs to.
    pub(crate) fn lock_shard_of(&self, key: Fingerprint) -> MutexGuard<'_, Shard> {
        self.lock_shard(self.shard_of(key))
    }

    /// Where `key` is, after giving it a slot if it has none: that of a vacant state if there is
    /// one on the way that nobody holds.
    pub(crate) fn find_or_insert(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        upkeep: &Upkeep<'_>,
    ) -> Result<usize, Crowded> {
        let place = self.place(self.layout(), shard.index);
        let mut vacant = None;
        for group in place.groups(key) {
            let mut empty = None;
            for index in group..group + GROUP {
                let resident = self.key_at(index);
                if resident == key {
                    return Ok(index);
                }
                if resident == Fingerprint::NONE {
                    empty = empty.or(Some(index));
                } else if vacant.is_none()
                    && upkeep.may_forget(resident)
                    && self.record_at(index).is_some_and(|record| upkeep.is_vacant(record))
                {
                    vacant = Some(index);
                }
            }
            let Some(empty) = empty else { continue };
            return match vacant {
                Some(vacant) if self.replace_vacant(vacant, key, upkeep) => Ok(vacant),
                _ if shard.keys >= place.keys_max() => Err(Crowded),
                _ => {
                    shard.keys += 1;
                    self.keys.fetch_add(1, Ordering::Relaxed);
                    Locked::new(self.slot(empty)).settle(key, Record::VACANT);
                    Ok(empty)
                }
            };
        }
        unreachable!("one slot of a shard is always empty")
    }

    /// Forgets the key near where `key` belongs that loses least by it, unless others changed that
    /// meanwhile, and tells what its state was; an error if nobody there can be spared.
    pub(crate) fn forget_one(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        upkeep: &Upkeep<'_>,
    ) -> Result<Option<Record>, Crowded> {
        let place = self.place(self.layout(), shard.index);
        let loss = |index: usize| upkeep.loss(Locked::new(self.slot(index)).record());
        let victim = place
            .groups(key)
            .flat_map(|group| group..group + GROUP)
            .filter(|index| self.key_at(*index) != Fingerprint::NONE)
            .take(VICTIMS_LOOKED_AT)
            .filter(|index| upkeep.may_forget(self.key_at(*index)))
            .filter_map(|index| Some((loss(index)?, index)))
            .min();
        let (_, index) = victim.ok_or(Crowded)?;
        let slot = Locked::new(self.slot(index));
        // It may have reached its limit since it was looked at; then another goes.
        if upkeep.loss(slot.record()).is_none() {
            return Ok(None);
        }
        let record = self.remove(shard, place, index, slot);
        upkeep.let_go(record);
        Ok(Some(record))
    }

    /// Whether it is time to grow. Sooner than a shard is crowded, so that the shards have moved by
    /// then, one with every new key; who finds a shard crowded must wait until that one has moved.
    pub(crate) fn is_filling(&self, shard: &Shard) -> bool {
        let place = self.place(self.layout(), shard.index);
        shard.keys + place.slots / 32 > place.keys_max()
    }

    /// Begins to grow, if the bytes for that can be had from `reserve`; true also if it has begun
    /// already.
    pub(crate) fn start_growing<'r>(
        &self,
        reserve: impl FnOnce(usize) -> Option<Reserved<'r>>,
    ) -> bool {
        let _moving = self.moving.lock().expect("nothing panics while a shard moves");
        let layout = self.layout();
        if layout.unmoved > 0 {
            return true;
        }
        let Some(grown) = self.grown(layout) else { return false };
        let bytes = self.bytes_under(grown) - self.bytes_under(layout);
        let Some(_reserved) = reserve(bytes) else { return false };
        self.groups.store(0, Ordering::Relaxed);
        self.layout.store(grown.packed(), Ordering::Release);
        true
    }

    /// Whether the table is growing, or may grow to so many bytes that it `fits`.
    pub(crate) fn can_grow(&self, fits: impl FnOnce(usize) -> bool) -> bool {
        // One look at the layout: between two, growing may begin or end, and somebody would be
        // forgotten for want of room that there is.
        let layout = self.layout();
        layout.unmoved > 0 || self.grown(layout).is_some_and(|grown| fits(self.bytes_under(grown)))
    }

    /// Moves one more shard, if the table is growing; says whether it was. States that are vacant
    /// stay behind.
    pub(crate) fn move_one_shard(&self, upkeep: &Upkeep<'_>) -> bool {
        if self.layout().unmoved == 0 {
            return false;
        }
        let _moving = self.moving.lock().expect("nothing panics while a shard moves");
        let layout = self.layout();
        let Some(index) = layout.unmoved.checked_sub(1) else { return true };
        let mut shard = self.lock_shard(index);
        let moved = Layout { unmoved: index, ..layout };
        let contents = self.take_out(self.place(layout, index), upkeep);
        self.keys.fetch_sub(shard.keys - contents.len(), Ordering::Relaxed);
        shard.keys = contents.len();
        self.put_in(self.place(moved, index), &contents);
        self.layout.store(moved.packed(), Ordering::Release);
        if moved.unmoved == 0 {
            self.groups.store(moved.slots_if_moved * self.shards() / GROUP, Ordering::Relaxed);
        }
        true
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Calls `each` with every key of a shard and its record, while the key's slot is locked.
    pub(crate) fn for_each_in(&self, shard: usize, mut each: impl FnMut(Fingerprint, Record)) {
        let shard = self.lock_shard(shard);
        for index in self.place(self.layout(), shard.index).range() {
            if self.key_at(index) != Fingerprint::NONE {
                let locked = Locked::new(self.slot(index));
                each(locked.key(), locked.record());
            }
        }
    }

    /// Takes the key at `index` out, and closes the gap that it leaves: a key that had to pass the
    /// group by moves into it, and so on after that one.
    fn remove(&self, shard: &mut Shard, place: Place, index: usize, slot: Locked<'_>) -> Record {
        let (mut gap, mut group) = (index, place.group_of(index));
        let mut was_passed = self.is_full(group);
        let (_, removed) = slot.vacate();
        shard.keys -= 1;
        self.keys.fetch_sub(1, Ordering::Relaxed);
        let mut next = place.after(group);
        while was_passed && next != place.group_of(index) {
            was_passed = self.is_full(next);
            let passed_by = (next..next + GROUP).find(|index| {
                let key = self.key_at(*index);
                let from_home = place.distance(place.home(key), next);
                key != Fingerprint::NONE && from_home >= place.distance(group, next)
            });
            if let Some(found) = passed_by {
                let (key, record) = Locked::new(self.slot(found)).vacate();
                Locked::new(self.slot(gap)).settle(key, record);
                (gap, group) = (found, next);
            }
            next = place.after(next);
        }
        removed
    }

    /// Whether a group has no empty slot. Sure only under the shard's lock.
    fn is_full(&self, group: usize) -> bool {
        (group..group + GROUP).all(|index| self.key_at(index) != Fingerprint::NONE)
    }

    /// Gives the slot of a state that was vacant to `key`, if it still is.
    fn replace_vacant(&self, index: usize, key: Fingerprint, upkeep: &Upkeep<'_>) -> bool {
        let slot = Locked::new(self.slot(index));
        let is_vacant = upkeep.is_vacant(slot.record());
        if is_vacant {
            upkeep.let_go(slot.record());
            slot.settle(key, Record::VACANT);
        }
        is_vacant
    }

    fn take_out(&self, place: Place, upkeep: &Upkeep<'_>) -> Vec<(Fingerprint, Record)> {
        let mut contents = Vec::with_capacity(place.slots);
        for index in place.range() {
            if self.key_at(index) != Fingerprint::NONE {
                let (key, record) = Locked::new(self.slot(index)).vacate();
                if upkeep.is_vacant(record) {
                    upkeep.let_go(record);
                } else {
                    contents.push((key, record));
                }
            }
        }
        contents
    }

    fn put_in(&self, place: Place, contents: &[(Fingerprint, Record)]) {
        for (key, record) in contents {
            let index = place
                .groups(*key)
                .flat_map(|group| group..group + GROUP)
                .find(|index| self.key_at(*index) == Fingerprint::NONE)
                .expect("a shard only moves to where it has more slots");
            Locked::new(self.slot(index)).settle(*key, *record);
        }
    }

    #[inline]
    fn groups(&self) -> &[Group] {
        let (pairs, _) = self.pages.words().as_chunks();
        pairs.as_chunks().0
    }

    /// The group whose first slot is at `start`.
    #[inline]
    fn group(&self, start: usize) -> &Group {
        &self.groups()[start / GROUP]
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot<'_> {
        Slot::of(self.group(index), index)
    }

    /// Who lives at `index`. Sure only under the shard's lock.
    fn key_at(&self, index: usize) -> Fingerprint {
        self.slot(index).key()
    }

    /// What may be kept at `index`: read without holding the slot, and so only a hint. Nothing while
    /// somebody does.
    fn record_at(&self, index: usize) -> Option<Record> {
        let Slot { state, .. } = self.slot(index);
        let high = state[HIGH].load(Ordering::Relaxed);
        (!is_held(high)).then(|| Packed::read(state, high).record())
    }

    fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().expect("nothing under a shard's lock panics")
    }

    #[inline]
    fn shard_of(&self, key: Fingerprint) -> usize {
        ((u128::from(key.second) * self.shards.len() as u128) >> 64) as usize
    }

    #[inline]
    fn place_of(&self, key: Fingerprint) -> Place {
        self.place(self.layout(), self.shard_of(key))
    }

    /// Where a shard lies under a layout.
    #[inline]
    fn place(&self, layout: Layout, shard: usize) -> Place {
        let slots = if shard < layout.unmoved { layout.slots } else { layout.slots_if_moved };
        Place { start: shard * slots, slots, shards: self.shards.len() }
    }

    #[inline]
    fn layout(&self) -> Layout {
        Layout::unpacked(self.layout.load(Ordering::Acquire))
    }

    fn bytes_under(&self, layout: Layout) -> usize {
        layout.slots_if_moved * self.shards.len() * SLOT_BYTES
    }

    /// The next larger layout, if the last growth is over and the array has room.
    fn grown(&self, layout: Layout) -> Option<Layout> {
        let slots = layout.slots_if_moved;
        let most = (self.groups().len() - 1) / self.shards.len() * GROUP;
        let more = (slots + slots / 8).next_multiple_of(GROUP).min(most);
        (layout.unmoved == 0 && more > slots).then_some(Layout {
            slots,
            slots_if_moved: more,
            unmoved: self.shards.len(),
        })
    }
}

impl<'t> Home<'t> {
    /// The slot of `key`, locked, if it is in one of these groups and nobody else has it.
    ///
    /// Whose slot it is, is seen when it is locked. To look before as well would cost every key at home
    /// something; so one that is not locks another's slot for a moment.
    #[inline(always)]
    pub(crate) fn lock(self, key: Fingerprint) -> Option<Locked<'t>> {
        let Self([group, next]) = self;
        if let Some(locked) = Locked::try_new(likely(group, key))?.of(key) {
            return Some(locked);
        }
        let passed_to = likely(next, key);
        if passed_to.key() == key { Locked::try_new(passed_to)?.of(key) } else { None }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("keys", &self.keys()).field("bytes", &self.bytes()).finish()
    }
}

/// How many slots each shard has. While the table grows the first `unmoved` shards still have the
/// old number.
#[derive(Clone, Copy)]
struct Layout {
    slots: usize,
    slots_if_moved: usize,
    unmoved: usize,
}

impl Layout {
    fn packed(self) -> u64 {
        self.slots as u64 | (self.slots_if_moved as u64) << 16 | (self.unmoved as u64) << 32
    }

    #[inline]
    fn unpacked(packed: u64) -> Self {
        Self {
            slots: (packed & 0xFFFF) as usize,
            slots_if_moved: (packed >> 16 & 0xFFFF) as usize,
            unmoved: (packed >> 32) as usize,
        }
    }
}

/// Where a shard lies in the array.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    slots: usize,
    /// How many shards there are in all.
    shards: usize,
}

impl Place {
    /// The first slot of the group where `key` would like to be. The bits that chose the shard are
    /// used up, so it is the ones behind them that choose the group.
    #[inline]
    fn home(self, key: Fingerprint) -> usize {
        let within = u128::from(key.second.wrapping_mul(self.shards as u64));
        let groups = (self.slots / GROUP) as u128;
        self.start + ((within * groups) >> 64) as usize * GROUP
    }

    /// The first slot of every group of the shard, from the home of `key` on and around.
    fn groups(self, key: Fingerprint) -> impl Iterator<Item = usize> {
        let (home, end) = (self.home(key), self.start + self.slots);
        (home..end).chain(self.start..home).step_by(GROUP)
    }

    fn group_of(self, index: usize) -> usize {
        index - (index - self.start) % GROUP
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start..self.start + self.slots
    }

    /// The group after `group`, around the end if need be.
    fn after(self, group: usize) -> usize {
        if group + GROUP == self.start + self.slots { self.start } else { group + GROUP }
    }

    /// Steps from `from` on to `to`, around the end if need be.
    fn distance(self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots - from }
    }

    /// A fuller shard would make unknown keys slow to tell from known ones. One slot at least is
    /// always empty, so every search ends.
    fn keys_max(self) -> usize {
        self.slots - self.slots.div_ceil(8)
    }
}

/// Which slot of a group holds `key`, if one does.
#[inline]
fn position(group: &Group, key: Fingerprint) -> Option<usize> {
    let index = (0..GROUP).fold(GROUP, |found, index| {
        let Fingerprint { first, second } = Slot::of(group, index).key();
        select_unpredictable((first == key.first) & (second == key.second), index, found)
    });
    (index < GROUP).then_some(index)
}

/// The slot of a group that may hold `key`; some slot if none does, or if two keys share a half.
///
/// A key is as likely in one slot as in another, so the processor must not guess.
#[inline(always)]
fn likely(group: &Group, key: Fingerprint) -> Slot<'_> {
    let index = (1..GROUP).fold(0, |found, index| {
        let is_here = group[index][FIRST].load(Ordering::Relaxed) == key.first;
        select_unpredictable(is_here, index, found)
    });
    Slot::of(group, index)
}

/// Whether the last word of a slot is the mark.
#[inline(always)]
fn is_held(high: u64) -> bool {
    high >= HELD
}

impl<'t> Slot<'t> {
    /// The slot of a group that is so far from its first, or from that of a group before it.
    #[inline(always)]
    fn of(group: &'t Group, index: usize) -> Self {
        let index = index % GROUP;
        Self { fingerprint: &group[index], state: &group[GROUP + index] }
    }

    /// Who lives there. Sure only under the shard's lock, or while the slot is taken.
    #[inline]
    fn key(self) -> Fingerprint {
        let [first, second] = self.fingerprint;
        Fingerprint { first: first.load(Ordering::Relaxed), second: second.load(Ordering::Relaxed) }
    }

    fn set_key(self, key: Fingerprint) {
        self.fingerprint[FIRST].store(key.first, Ordering::Relaxed);
        self.fingerprint[SECOND].store(key.second, Ordering::Relaxed);
    }
}

impl<'t> Locked<'t> {
    #[inline(always)]
    fn new(slot: Slot<'t>) -> Self {
        let mut high = Self::exchange(slot.state);
        if is_held(high) {
            high = Self::wait_for(slot.state);
        }
        Self { slot, kept: Packed::read(slot.state, high) }
    }

    /// The same, unless somebody else has it.
    #[inline(always)]
    fn try_new(slot: Slot<'t>) -> Option<Self> {
        let high = Self::exchange(slot.state);
        (!is_held(high)).then(|| Self { slot, kept: Packed::read(slot.state, high) })
    }

    /// Leaves the mark of who holds a slot, and takes what was there. Who finds the mark has changed
    /// nothing.
    #[inline(always)]
    fn exchange(state: &Pair) -> u64 {
        state[HIGH].swap(HELD, Ordering::Acquire)
    }

    /// Takes it when whoever has it lets go.
    #[cold]
    fn wait_for(state: &Pair) -> u64 {
        let mut tries = 0;
        loop {
            tries += 1;
            spin(tries);
            // Only looked at meanwhile: an exchange would take the memory from who has it.
            if !is_held(state[HIGH].load(Ordering::Relaxed)) {
                let high = Self::exchange(state);
                if !is_held(high) {
                    return high;
                }
            }
        }
    }

    /// The slot, if it is that of `key`.
    #[inline(always)]
    fn of(self, key: Fingerprint) -> Option<Self> {
        (self.key() == key).then_some(self)
    }

    /// What is kept of the key.
    #[inline]
    pub(crate) fn record(&self) -> Record {
        self.kept.record()
    }

    /// The key's state, if it was written under the limit of this stamp.
    #[inline(always)]
    pub(crate) fn word_under(&self, Stamp(stamp): Stamp) -> Option<Word> {
        let Packed { low, high } = self.kept;
        let word = Word { low: low ^ stamp.low, high: high ^ stamp.high };
        ((word.low | word.high) <= HALF).then_some(word)
    }

    /// Keeps another state of the key, under the limit of this stamp.
    #[inline(always)]
    pub(crate) fn write_under(&mut self, Stamp(stamp): Stamp, word: Word) {
        debug_assert!(word.low <= HALF && word.high <= HALF);
        self.kept = Packed { low: word.low | stamp.low, high: word.high | stamp.high };
    }

    /// Keeps something else of it.
    #[inline(always)]
    pub(crate) fn write(&mut self, record: Record) {
        self.kept = record.packed();
    }

    /// Whose slot it is.
    #[inline]
    pub(crate) fn key(&self) -> Fingerprint {
        self.slot.key()
    }

    /// Gives the slot to `key`.
    fn settle(mut self, key: Fingerprint, record: Record) {
        self.slot.set_key(key);
        self.write(record);
    }

    /// Leaves the slot empty; tells who was in it.
    fn vacate(mut self) -> (Fingerprint, Record) {
        let was = (self.key(), self.record());
        self.slot.set_key(Fingerprint::NONE);
        self.write(Record::VACANT);
        was
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.state[LOW].store(self.kept.low, Ordering::Relaxed);
        sync::let_go(&self.slot.state[HIGH], self.kept.high, HELD);
    }
}

impl Record {
    /// What is kept of a key never seen.
    pub(crate) const VACANT: Self = Self { limit: 0, word: Word::VACANT };

    #[inline(always)]
    fn packed(self) -> Packed {
        let Self { limit, word } = self;
        debug_assert!(word.low <= HALF && word.high <= HALF && (limit as usize) < LIMITS_MAX);
        let limit = u64::from(limit);
        Packed {
            low: word.low | limit << Word::HALF_BITS,
            high: word.high | (limit >> LIMIT_BITS_LOW) << Word::HALF_BITS,
        }
    }
}

impl Stamp {
    /// That of the limit with this number.
    pub(crate) fn of(limit: u32) -> Self {
        Self(Record { limit, word: Word::VACANT }.packed())
    }
}

impl Packed {
    #[inline]
    fn read(state: &Pair, high: u64) -> Self {
        Self { low: state[LOW].load(Ordering::Relaxed), high }
    }

    #[inline]
    fn record(self) -> Record {
        let Self { low, high } = self;
        let limit = low >> Word::HALF_BITS | (high >> Word::HALF_BITS) << LIMIT_BITS_LOW;
        Record { limit: limit as u32, word: Word { low: low & HALF, high: high & HALF } }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use tollgate_core::{Align, Cost, Limit, Quota, Timestamp};

    use super::*;
    use crate::{Clock, MemoryStore};

    /// Nobody is turned away who is near its home: the way around is right too, only slower, so that nothing else
    /// would show.
    #[test]
    fn who_had_to_pass_its_home_by_is_at_hand_unless_somebody_holds_it() {
        let store = MemoryStore::with_max_bytes(Clock::manual(Timestamp::EPOCH), 1 << 22).unwrap();
        let (table, upkeep) = (&store.table, store.upkeep(Timestamp::EPOCH));
        // All at home in the first group.
        let keys: Vec<Fingerprint> =
            (1..=5).map(|first| Fingerprint { first, second: 1 }).collect();
        let lock = |key: Fingerprint| table.fetch(key).lock(key);
        assert!(lock(keys[0]).is_none(), "it is unknown");
        let mut shard = table.lock_shard_of(keys[0]);
        // A state that nobody would miss would make way for the next.
        let limit = store.enroll(Limit::fixed_window(Quota::per_day(2), Align::Clock)).unwrap();
        let Limit::Counter(counter) = limit.limit() else { unreachable!("a window counts") };
        let used = counter.step(Word::VACANT, Timestamp::EPOCH, Cost::ONE).word;
        let places: Vec<usize> = keys
            .iter()
            .map(|key| {
                let index = table.find_or_insert(&mut shard, *key, &upkeep).unwrap();
                table.lock_at(index, *key).unwrap().write_under(limit.stamp, used);
                index
            })
            .collect();
        assert_eq!((places[3] / GROUP, places[4] / GROUP), (0, 1));
        for key in &keys {
            let held = lock(*key).expect("it is at hand");
            assert_eq!(held.key(), *key);
            assert!(lock(*key).is_none(), "somebody has it");
        }
    }

    #[test]
    fn the_memory_that_is_fetched_is_that_of_the_home_also_while_shards_move() {
        let store = MemoryStore::with_max_bytes(Clock::manual(Timestamp::EPOCH), 1 << 22).unwrap();
        let (table, upkeep) = (&store.table, store.upkeep(Timestamp::EPOCH));
        let is_fetched = |number: u64| {
            let key = Fingerprint { first: 1, second: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
            std::ptr::eq(&table.fetch(key).0[0], table.group(table.place_of(key).home(key)))
        };
        for _ in 0..5 {
            assert!((0..1_000).all(is_fetched));
            assert!(table.start_growing(|bytes| store.reserve_for_logs(bytes)));
            assert_eq!(table.groups.load(Ordering::Relaxed), 0);
            while table.move_one_shard(&upkeep) {
                assert!((0..1_000).all(is_fetched));
            }
            let groups = table.bytes() / SLOT_BYTES / GROUP;
            assert_eq!(table.groups.load(Ordering::Relaxed), groups, "in one step again");
        }
    }
}
