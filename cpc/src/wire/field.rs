//! Named bit fields of a 256-byte MAD.
//!
//! The IB specification counts bytes from the start of the message and bits from the most significant one of a byte;
//! so does [`Field`]. Offsets are those of the CM message, that is, behind the 24-byte common MAD header.
//! Bounds are asserted when the constants are built, so reading and writing can't go astray at run time.
//!
//! A message is written down once, by `message!`: each field with its type and its [`Place`] in the MAD.

use verbs::{Gid, Lid, Psn, Qpn};

use super::WireError;
use super::domain::DomainId;
use crate::ProcessName;

/// Length of every management datagram (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// A management datagram as it goes over the wire, without a global route header.
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

    pub(crate) fn read(self, mad: &[u8; MAD_LEN]) -> u64 {
        let bytes = &mad[self.byte..self.byte + self.span()];
        let whole = bytes.iter().fold(0_u128, |acc, &b| acc << 8 | u128::from(b));
        u64::try_from(whole >> self.shift() & self.mask()).unwrap_or(u64::MAX)
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

/// Where a value lies in a MAD.
pub trait Place<T> {
    /// Writes it; the bits around it stay.
    fn put(&self, value: &T, mad: &mut Mad);
    /// Reads it.
    ///
    /// # Errors
    /// [`WireError`] for a value that no sender of this version writes.
    fn take(&self, mad: &Mad) -> Result<T, WireError>;
}

/// A value that one field holds.
pub trait Value: Copy {
    /// As the field has it.
    fn bits(self) -> u64;
    /// The value of a field that is no wider than its type.
    fn of_bits(bits: u64) -> Self;
}

impl<T: Value> Place<T> for Field {
    fn put(&self, value: &T, mad: &mut Mad) {
        self.write(mad, value.bits());
    }

    fn take(&self, mad: &Mad) -> Result<T, WireError> {
        Ok(T::of_bits(self.read(mad)))
    }
}

/// A field that not every value may stand in, which ones may, and what it is called.
pub(crate) struct Checked<T>(pub Field, pub fn(T) -> bool, pub &'static str);

impl<T: Value> Place<T> for Checked<T> {
    fn put(&self, value: &T, mad: &mut Mad) {
        self.0.put(value, mad);
    }

    fn take(&self, mad: &Mad) -> Result<T, WireError> {
        let value = self.0.take(mad)?;
        if self.1(value) { Ok(value) } else { Err(WireError::Field(self.2)) }
    }
}

/// `Place` in a `Run` for structs around 16 bytes.
macro_rules! bytes {
    ($($Newtype:ident)+) => {
        $(impl Place<$Newtype> for Run {
            fn put(&self, value: &$Newtype, mad: &mut Mad) {
                self.of_mut(mad).copy_from_slice(&value.0);
            }

            fn take(&self, mad: &Mad) -> Result<$Newtype, WireError> {
                let bytes = self.of(mad);
                bytes.try_into().map($Newtype).map_err(|_| WireError::Length(bytes.len(), size_of::<$Newtype>()))
            }
        })+
    };
}

bytes!(Gid DomainId);

/// `Value` for numbers, and for structs around one.
macro_rules! values {
    ($($num:ident)*; $($Newtype:ident)+) => {
        $(impl $crate::wire::field::Value for $num {
            fn bits(self) -> u64 {
                self.into()
            }

            fn of_bits(bits: u64) -> Self {
                bits as $num
            }
        })*
        $(impl $crate::wire::field::Value for $Newtype {
            fn bits(self) -> u64 {
                self.0.into()
            }

            fn of_bits(bits: u64) -> Self {
                Self($crate::wire::field::Value::of_bits(bits))
            }
        })+
    };
}

values!(u8 u16 u32 u64; Lid Psn Qpn ProcessName);

/// A flag is set by 1, and by no other value.
impl Value for bool {
    fn bits(self) -> u64 {
        self.into()
    }

    fn of_bits(bits: u64) -> bool {
        bits == 1
    }
}

/// A message, or what several messages have in common: it knows where its fields lie.
pub trait Part: Sized {
    /// Writes it into a MAD whose other bytes are 0.
    fn emit(&self, mad: &mut Mad);
    /// Reads it.
    ///
    /// # Errors
    /// [`WireError::Field`] for a value that no sender of this version writes.
    fn parse(mad: &Mad) -> Result<Self, WireError>;
}

/// The place of a [`Part`] in a message: where its own fields say.
pub(crate) struct Within;

impl<T: Part> Place<T> for Within {
    fn put(&self, part: &T, mad: &mut Mad) {
        part.emit(mad);
    }

    fn take(&self, mad: &Mad) -> Result<T, WireError> {
        T::parse(mad)
    }
}

/// A struct and its [`Part`]: fields in the order in which they are read, each with its place. `fixed` fields have one value, and another is
/// refused by name; `written` ones are there for those who read captures, and are not read here.
macro_rules! message {
    ($(#[$doc:meta])* pub struct $Name:ident {
        $(fixed $fixed:expr, $value:expr, $error:ident($what:literal);)*
        $($(#[$field_doc:meta])* pub $field:ident: $Type:ty = $place:expr,)+
        $(written $written:path, |$this:pat_param| $from:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $Name { $($(#[$field_doc])* pub $field: $Type),+ }

        impl $crate::wire::field::Part for $Name {
            fn emit(&self, mad: &mut $crate::wire::field::Mad) {
                $($fixed.write(mad, $value);)*
                $($crate::wire::field::Place::put(&$place, &self.$field, mad);)+
                $({
                    let $this = self;
                    $written.write(mad, $from);
                })*
            }

            fn parse(mad: &$crate::wire::field::Mad) -> Result<Self, $crate::wire::WireError> {
                $(if $fixed.read(mad) != $value {
                    return Err($crate::wire::WireError::$error($what));
                })*
                Ok($Name { $($field: $crate::wire::field::Place::take(&$place, mad)?),+ })
            }
        }
    };
}

pub(crate) use {message, values};

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
