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

/// A vector of `outer` tables of `cols` times `inner` elements, which `fill` writes in strips: all columns of a few
/// neighbouring rows, of (outer, inner).
pub fn filled_strips<E: Element>(
    [outer, cols, inner]: [usize; 3],
    width: usize,
    fill: impl for<'a> FnOnce(Vec<Strip<'a, E>>) -> Result<Vec<FilledStrip<'a>>, TryReserveError>,
) -> Result<Vec<E>, TryReserveError> {
    let len = outer * cols * inner;
    let mut elements = Vec::new();
    elements.try_reserve_exact(len)?;
    let space: &mut [MaybeUninit<E>] = &mut elements.spare_capacity_mut()[..len];
    advise_huge(space);
    let mut strips = Vec::new();
    strips.try_reserve_exact(outer * inner.div_ceil(width))?;
    for (o, table) in space.chunks_mut(cols * inner).enumerate() {
        let start = table.as_mut_ptr();
        for first in (0..inner).step_by(width) {
            strips.push(Strip {
                row: o * inner + first,
                // SAFETY: within the table.
                start: unsafe { start.add(first) },
                cols,
                inner,
                width: width.min(inner - first),
                written: 0,
                table: PhantomData,
            });
        }
    }
    let filled = fill(strips)?;
    // Each strip makes one proof at most, when all of it is written.
    assert_eq!(
        filled.iter().map(|strip| strip.elements).sum::<usize>(),
        len
    );
    // SAFETY: the proofs are of strips of this memory (there are no others of its lifetime), and say `len` elements.
    unsafe { elements.set_len(len) };
    Ok(elements)
}

/// All columns of `width` neighbouring rows, to be written column after column.
pub struct Strip<'a, E> {
    /// The first row.
    pub row: usize,
    width: usize,
    start: *mut MaybeUninit<E>,
    cols: usize,
    inner: usize,
    written: usize,
    table: PhantomData<&'a mut [E]>,
}

/// Proof that a strip has been written.
pub struct FilledStrip<'a> {
    elements: usize,
    /// Of this lifetime and no longer one.
    table: PhantomData<std::cell::Cell<&'a ()>>,
}

// SAFETY: a strip is an exclusive borrow of its elements, which no other strip has.
unsafe impl<E: Element> Send for Strip<'_, E> {}

impl<'a, E: Element> Strip<'a, E> {
    /// Rows of it.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes the next column.
    #[inline(always)]
    pub fn column(&mut self, write: impl for<'c> FnOnce(&'c mut [MaybeUninit<E>]) -> Filled<'c>) {
        assert!(self.written < self.cols);
        // SAFETY: column `written` of a table of `cols` times `inner` elements, the strip's rows of it; `filled_strips`
        // gives no two strips the same.
        let column = unsafe {
            std::slice::from_raw_parts_mut(self.start.add(self.written * self.inner), self.width)
        };
        let all = (column.as_ptr().addr(), size_of_val(column));
        let filled = write(column);
        assert_eq!((filled.start, filled.bytes), all);
        self.written += 1;
    }

    pub fn done(self) -> FilledStrip<'a> {
        assert_eq!(self.written, self.cols);
        FilledStrip {
            elements: self.cols * self.width,
            table: PhantomData,
        }
    }
}

/// `len` elements of no value, if there is memory for them.
pub fn uninit<E: Copy>(len: usize) -> Result<Vec<MaybeUninit<E>>, TryReserveError> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len)?;
    elements.resize(len, MaybeUninit::uninit());
    Ok(elements)
}

/// Elements there are as room for others.
///
/// # Safety
///
/// Only elements may be written to it.
pub unsafe fn as_room<E: Element>(elements: &mut [E]) -> &mut [MaybeUninit<E>] {
    // SAFETY: same layout; the caller sees to what is written.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) }
}

/// Writes all of `elements` anew.
#[inline(always)]
pub fn overwrite<E: Element>(
    elements: &mut [E],
    fill: impl for<'a> FnOnce(&'a mut [MaybeUninit<E>]) -> Filled<'a>,
) {
    let all = (elements.as_ptr().addr(), size_of_val(elements));
    // SAFETY: this crate writes to room by `Access::store` alone, which writes elements; and `filled` is proof of that.
    let filled = fill(unsafe { as_room(elements) });
    assert_eq!((filled.start, filled.bytes), all);
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
