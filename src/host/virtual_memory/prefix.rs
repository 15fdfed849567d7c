//! A shared prefix: one file in memory, mapped once for itself and once per allocation that shares it.

use super::kernel;
use crate::contract::SharedDevicePrefix;
use crate::sync::Arc;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;
use std::any::Any;
use std::ptr::{self, NonNull};

/// How much memory a prefix takes at once, in bytes: a multiple of every page size.
const STEP: usize = 1 << 26;
/// The least that it takes at once where signals interrupt it, as [`STEP`].
const LEAST_STEP: usize = 1 << 18;

/// The physical range, made by one [`VirtualMemory`](super::VirtualMemory).
#[derive(Debug)]
pub(super) struct Prefix {
    file: OwnedFd,
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    requested_bytes: usize,
    maker: Arc<()>,
}

// SAFETY: the mapping belongs to the prefix, is not accessed through it, and is unmapped once, by whichever thread drops it.
unsafe impl Send for Prefix {}
// SAFETY: a shared prefix is only read; the kernel takes its file and its pages from any thread.
unsafe impl Sync for Prefix {}

impl Prefix {
    /// Makes a file of `mapped_bytes` bytes, which are whole pages and at least one, all of them in memory, and maps it.
    pub(super) fn new(requested_bytes: usize, mapped_bytes: usize, maker: Arc<()>) -> Result<Self> {
        // The kernel would look for memory that does not exist by ending one process after the other.
        let machine = sysinfo();
        if mapped_bytes as u128 > (u128::from(machine.totalram) + u128::from(machine.totalswap)) * u128::from(machine.mem_unit) {
            return Err(Errno::NOMEM);
        }
        // The kernel would tell of that by a signal that ends the process.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| mapped_bytes as u64 > most) {
            return Err(Errno::FBIG);
        }
        let file = memfd_create(c"liveslot-prefix", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, mapped_bytes as u64)?;
        // SAFETY: a mapping at an address of the kernel's choice touches no other.
        let mapping = unsafe { mmap(ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) }?;
        let mapping = NonNull::new(mapping.cast()).expect("the kernel maps nothing at address 0 unasked");
        let prefix = Self { file, mapping, mapped_bytes, requested_bytes, maker };
        prefix.back()?;
        Ok(prefix)
    }

    /// Takes the memory now, so that its lack is an error here instead of a signal later.
    ///
    /// The memory of a file is no process's. Mapped it is this one's, so that the kernel, when it runs out, ends the
    /// process that took it: therefore step by step.
    fn back(&self) -> Result<()> {
        let (mut offset, mut step) = (0, STEP);
        while offset < self.mapped_bytes {
            let bytes = step.min(self.mapped_bytes - offset);
            match fallocate(&self.file, FallocateFlags::empty(), offset as u64, bytes as u64) {
                // A kernel that lets itself be interrupted has given back what this call had taken: the same again would never
                // be done if signals keep coming. Less gets done between two of them.
                Err(Errno::INTR) => {
                    step = LEAST_STEP.max(step / 2);
                    continue;
                }
                done => done?,
            }
            // An error (Linux before 5.14 knows no such advice) leaves the memory unmapped until it is touched.
            // SAFETY: pages of the mapping; their contents stay.
            let _ = unsafe { madvise(self.mapping.add(offset).as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
            offset += bytes;
        }
        Ok(())
    }

    pub(super) fn is_made_by(&self, maker: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.maker, maker)
    }

    /// Replaces the pages at `start` by the prefix, in one step. On an error they are as they were, as far as that is
    /// so for [`kernel::discard`].
    ///
    /// # Safety
    ///
    /// As many pages as the prefix has belong to a mapping of the caller's, and nobody uses their contents.
    pub(super) unsafe fn map_over(&self, start: NonNull<u8>) -> Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the caller owns what is replaced.
        unsafe { mmap(start.as_ptr().cast(), self.mapped_bytes, access, flags, &self.file, 0) }.map(drop)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and known to nobody else but users of the prefix, which is at its end. There is nobody
        // to tell of an error, after which the mapping stays.
        let _ = unsafe { kernel::release(self.mapping, self.mapped_bytes) };
    }
}

impl SharedDevicePrefix for Prefix {
    fn device_ptr(&self) -> u64 {
        self.mapping.as_ptr().expose_provenance() as u64
    }

    fn committed_physical_bytes(&self) -> u64 {
        self.mapped_bytes as u64
    }

    fn mapped_bytes(&self) -> usize {
        self.mapped_bytes
    }

    fn requested_bytes(&self) -> usize {
        self.requested_bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
