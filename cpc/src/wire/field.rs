//! Named bit fields of a 256-byte MAD.
//!
//! The IB specification counts bytes from the start of the message and bits from the most significant one of a byte;
//! so does [`Field`]. Offsets are those of the CM message, that is, behind the 24-byte common MAD header.
//! Bounds are asserted when the constants are built, so reading and writing can't go astray at run time.

/// Length of every management datagram (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LEN];
/// Length of the common MAD header, behind which the CM message begins (IBTA 13.4.3).
pub const HEADER_LEN: usize = 24;

/// One big-endian field of at most 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    byte: usize,
    bit: usize,
    width: usize,
}

impl Field {
    /// A field of the common MAD header: `len` whole bytes at `byte`.
    pub(crate) const fn header(byte: usize, len: usize) -> Field {
        Field::new(byte, 0, len * 8)
    }

    /// `width` bits of the CM message from the most significant bit of `byte` on.
    pub(crate) const fn cm(byte: usize, width: usize) -> Field {
        Field::new(HEADER_LEN + byte, 0, width)
    }

    /// `width` bits of the CM message that begin `bit` bits into `byte`.
    pub(crate) const fn cm_bits(byte: usize, bit: usize, width: usize) -> Field {
        Field::new(HEADER_LEN + byte, bit, width)
    }

    const fn new(byte: usize, bit: usize, width: usize) -> Field {
        assert!(bit < 8 && width >= 1 && width <= 64);
        assert!(byte * 8 + bit + width <= MAD_LEN * 8);
        Field { byte, bit, width }
    }

    fn span(self) -> usize {
        (self.bit + self.width).div_ceil(8)
    }

    fn shift(self) -> usize {
        self.span() * 8 - self.bit - self.width
    }

    fn mask(self) -> u128 {
        (1_u128 << self.width) - 1
    }

    /// The field's value.
    pub(crate) fn read(self, mad: &[u8; MAD_LEN]) -> u64 {
        let bytes = &mad[self.byte..self.byte + self.span()];
        let whole = bytes.iter().fold(0_u128, |acc, &b| acc << 8 | u128::from(b));
        u64::try_from(whole >> self.shift() & self.mask()).unwrap_or(u64::MAX)
    }

    /// The value of a field of at most 8 bits.
    pub(crate) fn read_u8(self, mad: &[u8; MAD_LEN]) -> u8 {
        self.read(mad).to_le_bytes()[0]
    }

    /// The value of a field of at most 16 bits.
    pub(crate) fn read_u16(self, mad: &[u8; MAD_LEN]) -> u16 {
        let [lo, hi, ..] = self.read(mad).to_le_bytes();
        u16::from_le_bytes([lo, hi])
    }

    /// The value of a field of at most 32 bits.
    pub(crate) fn read_u32(self, mad: &[u8; MAD_LEN]) -> u32 {
        let [a, b, c, d, ..] = self.read(mad).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Puts `value` in, cut to the field's width; neighbouring bits stay.
    pub(crate) fn write(self, mad: &mut [u8; MAD_LEN], value: u64) {
        let value = (u128::from(value) & self.mask()) << self.shift();
        let mask = self.mask() << self.shift();
        let span = self.span();
        for (i, byte) in mad[self.byte..self.byte + span].iter_mut().enumerate() {
            let right = (span - 1 - i) * 8;
            *byte = *byte & !low_byte(mask >> right) | low_byte(value >> right);
        }
    }
}

fn low_byte(wide: u128) -> u8 {
    wide.to_le_bytes()[0]
}

/// A run of bytes of the CM message, for GIDs and private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    start: usize,
    len: usize,
}

impl Run {
    pub(crate) const fn cm(byte: usize, len: usize) -> Run {
        assert!(HEADER_LEN + byte + len <= MAD_LEN);
        Run { start: HEADER_LEN + byte, len }
    }

    pub(crate) fn of(self, mad: &[u8; MAD_LEN]) -> &[u8] {
        &mad[self.start..self.start + self.len]
    }

    pub(crate) fn of_mut(self, mad: &mut [u8; MAD_LEN]) -> &mut [u8] {
        &mut mad[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_back_and_its_neighbours_stay() {
        let field = Field::cm_bits(50, 5, 3);
        let mut mad = [0xff_u8; MAD_LEN];
        field.write(&mut mad, 0b010);
        assert_eq!(field.read(&mad), 0b010);
        assert_eq!(mad[HEADER_LEN + 50], 0b1111_1010);
        assert_eq!(mad.iter().filter(|&&b| b != 0xff).count(), 1);
    }

    #[test]
    fn a_field_of_64_bits_is_big_endian() {
        let field = Field::cm(8, 64);
        let mut mad = [0_u8; MAD_LEN];
        field.write(&mut mad, 0x0102_0304_0506_0708);
        assert_eq!(&mad[HEADER_LEN + 8..HEADER_LEN + 16], &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(field.read(&mad), 0x0102_0304_0506_0708);
    }

    #[test]
    fn a_value_too_wide_is_cut_not_spilled() {
        let field = Field::cm(32, 24);
        let mut mad = [0_u8; MAD_LEN];
        field.write(&mut mad, 0xff12_3456);
        assert_eq!(field.read(&mad), 0x12_3456);
        assert_eq!(mad[HEADER_LEN + 35], 0);
    }
}
