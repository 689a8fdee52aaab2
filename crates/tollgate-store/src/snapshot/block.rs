//! Payload in checksummed blocks.

use std::io::{self, Read, Write};

use super::format::SnapshotError;
use crate::siphash::SipHasher;

/// Large enough that checksums cost nothing, small enough to hold in memory.
const BLOCK_BYTES: usize = 64 << 10;

/// Checksums guard against accidents, so their key is no secret.
const CHECKSUM: [u64; 2] = [0x746f_6c6c_6761_7465, 1];

pub(super) struct BlockWriter<W> {
    inner: W,
    block: Vec<u8>,
    number: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, block: Vec::with_capacity(BLOCK_BYTES), number: 0 }
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while self.block.len() + bytes.len() > BLOCK_BYTES {
            let (now, later) = bytes.split_at(BLOCK_BYTES - self.block.len());
            self.block.extend_from_slice(now);
            self.flush(false)?;
            bytes = later;
        }
        self.block.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes what is left, marked as the last block.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.flush(true)?;
        Ok(self.inner)
    }

    fn flush(&mut self, last: bool) -> io::Result<()> {
        self.inner.write_all(&(self.block.len() as u32).to_le_bytes())?;
        self.inner.write_all(&[u8::from(last)])?;
        self.inner.write_all(&self.block)?;
        self.inner.write_all(&checksum(self.number, last, &self.block))?;
        self.number += 1;
        self.block.clear();
        Ok(())
    }
}

pub(super) struct BlockReader<R> {
    inner: R,
    block: Vec<u8>,
    at: usize,
    number: u64,
    last: bool,
}

impl<R: Read> BlockReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, block: Vec::new(), at: 0, number: 0, last: false }
    }

    /// The next `N` bytes of the payload.
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            if self.is_at_end()? {
                return Err(SnapshotError::Damaged { what: "it ends in the middle of a state" });
            }
            *byte = self.block[self.at];
            self.at += 1;
        }
        Ok(bytes)
    }

    /// Whether the payload is over; reads the next block if this one is.
    pub(super) fn is_at_end(&mut self) -> Result<bool, SnapshotError> {
        while self.at == self.block.len() {
            if self.last {
                return self.nothing_follows().map(|()| true);
            }
            self.read_block()?;
        }
        Ok(false)
    }

    fn read_block(&mut self) -> Result<(), SnapshotError> {
        let mut header = [0; 5];
        self.inner.read_exact(&mut header)?;
        let [length @ .., last] = header;
        let length = u32::from_le_bytes(length) as usize;
        if length > BLOCK_BYTES || last > 1 {
            return Err(SnapshotError::Damaged { what: "a block's header makes no sense" });
        }
        self.block.resize(length, 0);
        self.inner.read_exact(&mut self.block)?;
        let mut expected = [0; 16];
        self.inner.read_exact(&mut expected)?;
        self.last = last == 1;
        if checksum(self.number, self.last, &self.block) != expected {
            return Err(SnapshotError::Damaged { what: "a block's checksum does not fit" });
        }
        self.number += 1;
        self.at = 0;
        Ok(())
    }

    fn nothing_follows(&mut self) -> Result<(), SnapshotError> {
        match self.inner.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(SnapshotError::Damaged { what: "something follows its last block" }),
        }
    }
}

fn checksum(number: u64, last: bool, block: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher::new(CHECKSUM);
    hasher.absorb_part(&number.to_le_bytes());
    hasher.absorb_part(&[u8::from(last)]);
    hasher.absorb_part(block);
    let [first, second] = hasher.finish();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}
