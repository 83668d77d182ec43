//! Memory for results that is written once: not zeroed before.

use crate::cpu::Element;
use std::collections::TryReserveError;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// From here on results are asked for in huge pages: a fault for each 4 KiB of a fresh 64 MB took three quarters of
/// the time of a softmax (Linux 6.18, 4096 x 4096 f32).
#[cfg(target_os = "linux")]
const HUGE: usize = 4 << 20;

/// Proof that a stretch of a result has been written: it comes of the exclusive borrow of its elements.
pub struct Filled<'a> {
    start: usize,
    bytes: usize,
    elements: PhantomData<&'a mut [u8]>,
}

impl<'a> Filled<'a> {
    #[inline(always)]
    pub fn of<E: Element>(elements: &'a mut [E]) -> Self {
        Self {
            start: elements.as_ptr().addr(),
            bytes: size_of_val(elements),
            elements: PhantomData,
        }
    }

    /// Nothing yet of `room`.
    #[inline(always)]
    pub fn none<E>(room: &[MaybeUninit<E>]) -> Self {
        Self {
            start: room.as_ptr().addr(),
            bytes: 0,
            elements: PhantomData,
        }
    }

    /// Both stretches, `next` beginning where this ends.
    #[inline(always)]
    pub fn then(self, next: Self) -> Self {
        assert_eq!(self.start + self.bytes, next.start);
        Self {
            bytes: self.bytes + next.bytes,
            ..self
        }
    }
}

/// A vector of `len` elements, all written by `fill`.
pub fn filled<E: Element>(
    len: usize,
    fill: impl for<'a> FnOnce(&'a mut [MaybeUninit<E>]) -> Result<Filled<'a>, TryReserveError>,
) -> Result<Vec<E>, TryReserveError> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len)?;
    let space = &mut elements.spare_capacity_mut()[..len];
    advise_huge(space);
    let all = (space.as_ptr().addr(), size_of_val(space));
    let filled = fill(space)?;
    assert_eq!((filled.start, filled.bytes), all);
    // SAFETY: `filled` is proof, of borrows of this very memory, that all `len` elements of it have been written.
    unsafe { elements.set_len(len) };
    Ok(elements)
}

/// `len` elements of no value, if there is memory for them.
pub fn uninit<E: Copy>(len: usize) -> Result<Vec<MaybeUninit<E>>, TryReserveError> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len)?;
    elements.resize(len, MaybeUninit::uninit());
    Ok(elements)
}

/// Elements there are as room for others: for `fill` to write where they lie.
///
/// Only for code that writes elements; all of this crate's does (through `Access::store`).
pub fn as_room<E: Element>(elements: &mut [E]) -> &mut [MaybeUninit<E>] {
    // SAFETY: same layout; what is written are elements, see above.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
}

#[cfg(target_os = "linux")]
fn advise_huge<E>(space: &mut [MaybeUninit<E>]) {
    const PAGE: usize = 4096; // or more: the call then fails, and nothing is lost
    if size_of_val(space) >= HUGE {
        let first = space.as_ptr().addr().next_multiple_of(PAGE);
        let skipped = first - space.as_ptr().addr();
        let bytes = (size_of_val(space) - skipped) / PAGE * PAGE;
        // SAFETY: the range is within `space`; the advice changes no contents.
        unsafe {
            let start = space.as_mut_ptr().cast::<u8>().add(skipped);
            libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge<E>(_: &mut [MaybeUninit<E>]) {}
