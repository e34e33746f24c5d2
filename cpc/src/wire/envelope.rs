//! What is around every message: the common MAD header, whose attribute modifier tells the protocols apart.

use super::field::{Field, Mad, Part, message};
use super::{Incarnation, VERSION, WireError};

const MODIFIER: Field = Field::header(20, 4);

message! {
    /// The common MAD header; its first four fields are the same in every CM datagram (IBTA 16.7.1).
    pub struct Envelope {
        fixed Field::header(0, 1), 1, Foreign("base version");
        fixed Field::header(1, 1), 0x07, Foreign("management class");
        fixed Field::header(2, 1), 2, Foreign("class version");
        fixed Field::header(3, 1), 0x03, Foreign("method");
        /// The sender's incarnation: upper half of the transaction id.
        pub from: Incarnation = Field::header(8, 4),
        /// The receiver's incarnation: lower half of the transaction id.
        pub to: Incarnation = Field::header(12, 4),
        /// Attribute id: which message follows.
        pub attribute: u64 = Field::header(16, 2),
    }
}

impl Envelope {
    /// Writes it for the protocol of this `magic`, and sets all other bytes of `mad` to 0.
    pub(crate) fn wrap(&self, magic: u32, mad: &mut Mad) {
        mad.fill(0);
        self.emit(mad);
        MODIFIER.write(mad, (magic | u32::from(VERSION)).into());
    }

    /// Reads it from a datagram of the right length, class, protocol and version.
    pub(crate) fn open(magic: u32, bytes: &[u8]) -> Result<(Envelope, &Mad), WireError> {
        let mad: &Mad = bytes.try_into().map_err(|_| WireError::Length(bytes.len(), size_of::<Mad>()))?;
        let envelope = Envelope::parse(mad)?;
        check_modifier(magic, MODIFIER.read(mad))?;
        Ok((envelope, mad))
    }
}

fn check_modifier(magic: u32, modifier: u64) -> Result<(), WireError> {
    let [version, rest @ ..] = modifier.to_le_bytes();
    if rest[..3] != magic.to_le_bytes()[1..] {
        return Err(WireError::Foreign("attribute modifier"));
    }
    if version == VERSION { Ok(()) } else { Err(WireError::Version(version)) }
}
