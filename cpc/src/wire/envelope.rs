//! What is around every message: the common MAD header, whose attribute modifier tells the protocols apart.

use super::field::{Field, MAD_LEN, Place};
use super::{Incarnation, VERSION, WireError};

const BASE_VERSION: Field = Field::header(0, 1);
const CLASS: Field = Field::header(1, 1);
const CLASS_VERSION: Field = Field::header(2, 1);
const METHOD: Field = Field::header(3, 1);
const FROM_INCARNATION: Field = Field::header(8, 4);
const TO_INCARNATION: Field = Field::header(12, 4);
const ATTRIBUTE: Field = Field::header(16, 2);
const MODIFIER: Field = Field::header(20, 4);

/// What the first four header fields hold in every CM datagram (IBTA 16.7.1).
const FIXED: [(Field, u64, &str); 4] = [
    (BASE_VERSION, 1, "base version"),
    (CLASS, 0x07, "management class"),
    (CLASS_VERSION, 2, "class version"),
    (METHOD, 0x03, "method"),
];

/// What is around every message, whichever protocol it is of: `magic` tells them apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: Incarnation,
    pub(crate) to: Incarnation,
    pub(crate) attribute: u64,
}

impl Envelope {
    /// Writes it, and sets all other bytes of `mad` to 0.
    pub(crate) fn emit(&self, magic: u32, mad: &mut [u8; MAD_LEN]) {
        mad.fill(0);
        for (field, value, _) in FIXED {
            field.write(mad, value);
        }
        FROM_INCARNATION.write(mad, self.from.0.into());
        TO_INCARNATION.write(mad, self.to.0.into());
        ATTRIBUTE.write(mad, self.attribute);
        MODIFIER.write(mad, (magic | u32::from(VERSION)).into());
    }

    /// Reads it from a datagram of the right length, class, protocol and version.
    pub(crate) fn parse(magic: u32, bytes: &[u8]) -> Result<(Envelope, &[u8; MAD_LEN]), WireError> {
        let mad: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        for (field, value, name) in FIXED {
            if field.read(mad) != value {
                return Err(WireError::Foreign(name));
            }
        }
        check_modifier(magic, MODIFIER.read(mad))?;
        let (from, to) = (FROM_INCARNATION.take(mad)?, TO_INCARNATION.take(mad)?);
        Ok((Envelope { from, to, attribute: ATTRIBUTE.read(mad) }, mad))
    }
}

fn check_modifier(magic: u32, modifier: u64) -> Result<(), WireError> {
    let [version, rest @ ..] = modifier.to_le_bytes();
    if rest[..3] != magic.to_le_bytes()[1..] {
        return Err(WireError::Foreign("attribute modifier"));
    }
    if version == VERSION { Ok(()) } else { Err(WireError::Version(version)) }
}
