//! Copies of payloads. Short ones are what latency is made of: two or four overlapping words instead of a call.

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: contract.
    unsafe {
        match len {
            0..=SHORT => copy_short(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// Most bytes that are copied without a call.
pub const SHORT: usize = 128;

/// Copies `len` bytes, at most [`SHORT`], without a call: whoever copies in between keeps what it has in registers.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every word lies inside the first `len` bytes of both sides, by the arms' bounds; the caller vouches for them.
    unsafe {
        match len {
            8..=15 => ends::<u64>(from, to, len),
            16..=32 => ends::<u128>(from, to, len),
            33..=64 => {
                ends::<u128>(from.add(len - 32), to.add(len - 32), 32);
                ends::<u128>(from, to, 32);
            }
            65.. => {
                let last = len.min(SHORT) - 64;
                (0..2).for_each(|i| ends::<u128>(from.add(last + 32 * i), to.add(last + 32 * i), 32));
                (0..2).for_each(|i| ends::<u128>(from.add(32 * i), to.add(32 * i), 32));
            }
            4..=7 => ends::<u32>(from, to, len),
            2..=3 => ends::<u16>(from, to, len),
            1 => *to = *from,
            0 => {}
        }
    }
}

/// Copies the first and the last word of `len` bytes, which may overlap.
///
/// # Safety
/// As `copy`, and `len` is between one word and two.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: both words lie inside the first `len` bytes; unaligned accesses are asked for as such.
    unsafe {
        let (first, second) =
            (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.add(last).cast::<T>().write_unaligned(second);
        to.cast::<T>().write_unaligned(first);
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..200).map(|i| i as u8 ^ 0x5a).collect();
        for len in 0..=150 {
            let mut to = [0xffu8; 200];
            // SAFETY: both are 200 bytes, and separate.
            unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(1), len) };
            assert_eq!(to[1..1 + len], from[3..3 + len], "{len}");
            assert!(to[0] == 0xff && to[1 + len..].iter().all(|b| *b == 0xff), "{len}");
        }
    }
}
