//! What a process publishes about itself, and what it reads of its peers, before any connection.
//!
//! ```text
//!   0..4  magic "OXIB"   4 major   5 minor   6..8 length of the whole message
//!   8..24 boot id        24..28 uid          28 device kind: 0 soft, 1 hard
//!   string8 segment directory      u8 ports, then for each a record16:
//!       gid 16 (subnet prefix in its first 8)   u16 lid   u8 mtu (1..=5: 256..4096)   u8 link layer (1 IB, 2 Ethernet)
//!       string16 layout    u8 adverts, then each: string8 name, u8 priority, bytes8 blob
//!       Ethernet, from minor version 1: u8 RoCE version (0: not known)   u8 length of the GID's network prefix (0: not known)
//!                 u8 further rows of the GID table, at most 7, then each: GID 16, u8 length of its network prefix
//! ```
//!
//! Little endian; `string8` is a byte of length and that many bytes, `16` two bytes of length.
//! Another major version is refused. A newer minor version may append to a port record and to the
//! message: this one skips what it does not know, so old and new processes still meet. From a peer
//! of the same version, nothing may be left over. Everything is checked against the length; a
//! message of no port is valid and means "not reachable by oxib".

#![forbid(unsafe_code)]

use super::bytes::{Reader, Truncated};
use super::layout::{Layout, LayoutError};
use super::roce::{MAX_ROWS, Row, Rows, Version};
use std::net::Ipv6Addr;

const MAGIC: [u8; 4] = *b"OXIB";
const MAJOR: u8 = 1;
const MINOR: u8 = 1;
/// From this one on, Ethernet ports tell the rows of their GID tables.
const ROWS_SINCE: u8 = 1;
const LENGTH_AT: usize = 6;
const FIXED_LEN: usize = 8;

/// Longest blob of a connection component, in bytes.
pub const MAX_BLOB: usize = 255;

/// Longest name of a connection component, in bytes.
pub const MAX_NAME: usize = 32;

/// Highest priority of a connection component.
pub const MAX_PRIORITY: u8 = 100;

/// Whether the device is the software one, which reaches processes of its own host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// softib.
    Soft,
    /// Any other device.
    Hard,
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// Peers are reached by LID, or by GID in another subnet.
    InfiniBand,
    /// RoCE.
    Ethernet,
    /// Its GID is 0: peers are reached by IP addresses.
    Iwarp,
}

/// One way to connect that a port offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advert {
    /// Component name: lower-case letters, digits, `_`; at most [`MAX_NAME`] bytes.
    pub name: String,
    /// 0 ..= [`MAX_PRIORITY`].
    pub priority: u8,
    /// The component's own data, at most [`MAX_BLOB`] bytes.
    pub blob: Vec<u8>,
}

/// One port that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// GID; its first eight bytes are the subnet prefix.
    pub gid: [u8; 16],
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// Path MTU as verbs number it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// The queues that this side uses; connected sides must have equal ones.
    pub layout: Layout,
    /// Connection components, none twice.
    pub adverts: Vec<Advert>,
    /// On Ethernet, what its connections may use in place of `gid`, which is the first; else empty.
    pub rows: Rows,
}

impl Port {
    /// First half of the GID: ports of one subnet reach each other.
    pub fn subnet_prefix(&self) -> [u8; 8] {
        self.gid.first_chunk().copied().unwrap_or_default()
    }
}

/// The whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modex {
    /// Identifies the running kernel (`/proc/sys/kernel/random/boot_id`): equal on one host only.
    pub boot_id: [u8; 16],
    /// Effective user id.
    pub uid: u32,
    /// Software or hardware.
    pub device: DeviceKind,
    /// Directory of the software device's segments; empty on hardware.
    pub segment_dir: String,
    /// The ports, at most 255.
    pub ports: Vec<Port>,
}

/// A message that is refused: the peer is treated as not reachable, and the refusal is counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModexError {
    /// Not ours at all.
    #[error("not an oxib address message: it begins with {0:02x?}")]
    Foreign([u8; 4]),
    /// Of a version that this one cannot read.
    #[error(
        "address message of version {major}.{minor}, this side reads {MAJOR}.x: use the same oxib everywhere"
    )]
    Version { major: u8, minor: u8 },
    /// The input ends too early.
    #[error("address message is cut off: {len} bytes, {need} announced or needed")]
    Truncated { len: usize, need: usize },
    /// A count or length inside points beyond the end.
    #[error("address message is malformed: {0} runs over the end")]
    Overrun(&'static str),
    /// Bytes after the end.
    #[error("address message has {0} bytes too many")]
    Trailing(usize),
    /// A value that the field cannot have.
    #[error("address message has {field} {value}, which is not valid")]
    Value { field: &'static str, value: u32 },
    /// Text that is no UTF-8 or has characters that do not belong there.
    #[error("address message has an unreadable {0}")]
    Text(&'static str),
    /// The layout does not parse.
    #[error("address message has a wrong layout: {0}")]
    Layout(LayoutError),
    /// The same GID twice on one port, or one that is none, or a network that is larger than the address.
    #[error("address message has a row of a GID table that cannot be: {}", Ipv6Addr::from(*.0))]
    Row([u8; 16]),
    /// The same connection component twice on one port.
    #[error("address message offers connection component {0} twice")]
    Duplicate(String),
    /// A value of this process that does not fit the format: only when encoding.
    #[error("{what} of {len} bytes or entries does not fit the address message, at most {limit}")]
    TooLong { what: &'static str, len: usize, limit: usize },
}

impl Modex {
    /// Whether a software device here reaches one there: same kernel, same segments, same owner.
    pub fn shares_segments(&self, peer: &Self) -> bool {
        let soft = |modex: &Self| modex.device == DeviceKind::Soft;
        let key = |modex: &Self| (modex.boot_id, modex.uid);
        soft(self) && soft(peer) && key(self) == key(peer) && self.segment_dir == peer.segment_dir
    }

    /// The wire bytes.
    ///
    /// # Errors
    /// [`ModexError::TooLong`], [`ModexError::Value`], [`ModexError::Text`] or
    /// [`ModexError::Duplicate`] when a value is not one that [`decode`](Self::decode) accepts.
    pub fn encode(&self) -> Result<Vec<u8>, ModexError> {
        let mut out = Vec::with_capacity(256);
        out.extend(MAGIC);
        out.extend([MAJOR, MINOR, 0, 0]);
        out.extend(self.boot_id);
        out.extend(self.uid.to_le_bytes());
        out.push(self.device.code());
        put8(&mut out, "segment directory", self.segment_dir.as_bytes())?;
        out.push(count("list of ports", self.ports.len())?);
        for port in &self.ports {
            put16(&mut out, "port", &port.encode()?)?;
        }
        let length = length16("address message", out.len())?;
        if let Some(field) = out.get_mut(LENGTH_AT..FIXED_LEN) {
            field.copy_from_slice(&length);
        }
        Ok(out)
    }

    /// Reads a peer's message.
    ///
    /// # Errors
    /// [`ModexError`]: foreign, another version, truncated, or not what [`encode`](Self::encode)
    /// writes.
    pub fn decode(message: &[u8]) -> Result<Self, ModexError> {
        let (mut reader, minor) = open(message)?;
        let modex = Self {
            boot_id: reader.array().map_err(overrun("boot id"))?,
            uid: reader.u32().map_err(overrun("uid"))?,
            device: DeviceKind::parse(reader.u8().map_err(overrun("device kind"))?)?,
            segment_dir: text(bytes8(&mut reader, "segment directory")?, "segment directory")?,
            ports: ports(&mut reader, minor)?,
        };
        finish(reader, minor)?;
        Ok(modex)
    }
}

/// Checks magic, version and length. The reader stands behind them; with the minor version.
fn open(message: &[u8]) -> Result<(Reader<'_>, u8), ModexError> {
    let Some((fixed, _)) = message.split_first_chunk::<FIXED_LEN>() else {
        return Err(ModexError::Truncated { len: message.len(), need: FIXED_LEN });
    };
    let [m0, m1, m2, m3, major, minor, len_lo, len_hi] = *fixed;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(ModexError::Foreign([m0, m1, m2, m3]));
    }
    if major != MAJOR {
        return Err(ModexError::Version { major, minor });
    }
    let need = usize::from(u16::from_le_bytes([len_lo, len_hi]));
    if message.len() < need {
        return Err(ModexError::Truncated { len: message.len(), need });
    }
    if message.len() > need {
        return Err(ModexError::Trailing(message.len() - need));
    }
    let body = message.get(FIXED_LEN..).unwrap_or_default();
    Ok((Reader::new(body), minor))
}

fn ports(reader: &mut Reader<'_>, minor: u8) -> Result<Vec<Port>, ModexError> {
    let count = reader.u8().map_err(overrun("list of ports"))?;
    let record = |reader: &mut Reader<'_>| Port::decode(bytes16(reader, "port")?, minor);
    (0..count).map(|_| record(reader)).collect()
}

/// Nothing may be left over, unless a newer version wrote it.
fn finish(reader: Reader<'_>, minor: u8) -> Result<(), ModexError> {
    match reader.rest().len() {
        left if left > 0 && minor <= MINOR => Err(ModexError::Trailing(left)),
        _ => Ok(()),
    }
}

impl Port {
    fn encode(&self) -> Result<Vec<u8>, ModexError> {
        let mut out = Vec::with_capacity(128);
        out.extend(self.gid);
        out.extend(self.lid.to_le_bytes());
        out.push(mtu(self.mtu)?);
        out.push(self.link_layer.code());
        put16(&mut out, "layout", self.layout.to_string().as_bytes())?;
        out.push(count("list of connection components", self.adverts.len())?);
        unique(&self.adverts)?;
        self.adverts.iter().try_for_each(|advert| advert.encode(&mut out))?;
        if self.link_layer == LinkLayer::Ethernet {
            self.check_rows()?;
            put_rows(&mut out, &self.rows);
        }
        Ok(out)
    }

    fn decode(record: &[u8], minor: u8) -> Result<Self, ModexError> {
        let mut reader = Reader::new(record);
        let mut port = Self {
            gid: reader.array().map_err(overrun("gid"))?,
            lid: reader.u16().map_err(overrun("lid"))?,
            mtu: mtu(reader.u8().map_err(overrun("mtu"))?)?,
            link_layer: LinkLayer::parse(reader.u8().map_err(overrun("link layer"))?)?,
            layout: layout(&mut reader)?,
            adverts: adverts(&mut reader)?,
            rows: Rows::default(),
        };
        if port.link_layer == LinkLayer::Ethernet {
            port.rows = match minor < ROWS_SINCE {
                true => Rows { version: Version::Unknown, rows: vec![Row { gid: port.gid, prefix: None }] },
                false => rows(&mut reader, port.gid)?,
            };
            port.check_rows()?;
        }
        finish(reader, minor)?;
        Ok(port)
    }

    /// The rows can be those of an Ethernet port: its own GID first, none twice, no more than there may be.
    fn check_rows(&self) -> Result<(), ModexError> {
        let rows = &self.rows.rows;
        let is_own = rows.first().is_some_and(|row| row.gid == self.gid);
        let is_fair = |(index, row): (usize, &Row)| {
            row.is_fair() && !rows.iter().take(index).any(|before| before.gid == row.gid)
        };
        if rows.len() > MAX_ROWS {
            return Err(ModexError::TooLong { what: "list of GIDs", len: rows.len(), limit: MAX_ROWS });
        }
        match rows.iter().enumerate().find(|&row| !is_fair(row)) {
            Some((_, row)) => Err(ModexError::Row(row.gid)),
            None if !is_own => Err(ModexError::Row(self.gid)),
            None => Ok(()),
        }
    }
}

/// Rows that have been checked; of the first, the GID stands elsewhere.
fn put_rows(out: &mut Vec<u8>, Rows { version, rows }: &Rows) {
    let prefix = |row: &Row| row.prefix.unwrap_or(0);
    let Some((own, further)) = rows.split_first() else { return };
    let count = u8::try_from(further.len()).unwrap_or(u8::MAX);
    out.extend([version.code(), prefix(own), count]);
    for row in further {
        out.extend(row.gid);
        out.push(prefix(row));
    }
}

fn rows(reader: &mut Reader<'_>, own: [u8; 16]) -> Result<Rows, ModexError> {
    let ran_over = overrun("list of GIDs");
    let version = Version::parse(reader.u8().map_err(&ran_over)?)?;
    let prefix = |len: u8| (len != 0).then_some(len);
    let mut rows = vec![Row { gid: own, prefix: prefix(reader.u8().map_err(&ran_over)?) }];
    let count = reader.u8().map_err(&ran_over)?;
    if usize::from(count) >= MAX_ROWS {
        return Err(ModexError::Value { field: "count of GIDs", value: count.into() });
    }
    for _ in 0..count {
        let gid = reader.array().map_err(&ran_over)?;
        rows.push(Row { gid, prefix: prefix(reader.u8().map_err(&ran_over)?) });
    }
    Ok(Rows { version, rows })
}

fn layout(reader: &mut Reader<'_>) -> Result<Layout, ModexError> {
    let text = text(bytes16(reader, "layout")?, "layout")?;
    Layout::parse(&text).map_err(ModexError::Layout)
}

fn adverts(reader: &mut Reader<'_>) -> Result<Vec<Advert>, ModexError> {
    let count = reader.u8().map_err(overrun("list of connection components"))?;
    let adverts = (0..count).map(|_| Advert::decode(reader)).collect::<Result<Vec<_>, _>>()?;
    unique(&adverts)?;
    Ok(adverts)
}

fn unique(adverts: &[Advert]) -> Result<(), ModexError> {
    let twice =
        |(index, advert): &(usize, &Advert)| adverts.iter().take(*index).any(|a| a.name == advert.name);
    match adverts.iter().enumerate().find(twice) {
        Some((_, advert)) => Err(ModexError::Duplicate(advert.name.clone())),
        None => Ok(()),
    }
}

impl Advert {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), ModexError> {
        self.check()?;
        put8(out, "connection component's name", self.name.as_bytes())?;
        out.push(self.priority);
        put8(out, "connection component's data", &self.blob)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, ModexError> {
        const NAME: &str = "connection component's name";
        let advert = Self {
            name: text(bytes8(reader, NAME)?, NAME)?,
            priority: reader.u8().map_err(overrun("priority"))?,
            blob: bytes8(reader, "connection component's data")?.to_vec(),
        };
        advert.check()?;
        Ok(advert)
    }

    fn check(&self) -> Result<(), ModexError> {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.bytes().all(letter) {
            return Err(ModexError::Text("connection component's name"));
        }
        if self.priority > MAX_PRIORITY {
            return Err(ModexError::Value { field: "priority", value: self.priority.into() });
        }
        Ok(())
    }
}

impl DeviceKind {
    const fn code(self) -> u8 {
        match self {
            Self::Soft => 0,
            Self::Hard => 1,
        }
    }

    fn parse(code: u8) -> Result<Self, ModexError> {
        match code {
            0 => Ok(Self::Soft),
            1 => Ok(Self::Hard),
            _ => Err(ModexError::Value { field: "device kind", value: code.into() }),
        }
    }
}

impl Version {
    const fn code(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    fn parse(code: u8) -> Result<Self, ModexError> {
        match code {
            0 => Ok(Self::Unknown),
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            _ => Err(ModexError::Value { field: "RoCE version", value: code.into() }),
        }
    }
}

impl LinkLayer {
    const fn code(self) -> u8 {
        match self {
            Self::InfiniBand => 1,
            Self::Ethernet => 2,
            Self::Iwarp => 3,
        }
    }

    fn parse(code: u8) -> Result<Self, ModexError> {
        match code {
            1 => Ok(Self::InfiniBand),
            2 => Ok(Self::Ethernet),
            3 => Ok(Self::Iwarp),
            _ => Err(ModexError::Value { field: "link layer", value: code.into() }),
        }
    }
}

fn mtu(code: u8) -> Result<u8, ModexError> {
    match code {
        1..=5 => Ok(code),
        _ => Err(ModexError::Value { field: "mtu", value: code.into() }),
    }
}

fn overrun(what: &'static str) -> impl Fn(Truncated) -> ModexError {
    move |Truncated| ModexError::Overrun(what)
}

fn bytes8<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a [u8], ModexError> {
    let len = reader.u8().map_err(overrun(what))?;
    reader.take(len.into()).map_err(overrun(what))
}

fn bytes16<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a [u8], ModexError> {
    let len = reader.u16().map_err(overrun(what))?;
    reader.take(len.into()).map_err(overrun(what))
}

fn text(bytes: &[u8], what: &'static str) -> Result<String, ModexError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ModexError::Text(what))
}

fn count(what: &'static str, len: usize) -> Result<u8, ModexError> {
    u8::try_from(len).map_err(|_| ModexError::TooLong { what, len, limit: u8::MAX.into() })
}

fn length16(what: &'static str, len: usize) -> Result<[u8; 2], ModexError> {
    let length = u16::try_from(len).map_err(|_| ModexError::TooLong { what, len, limit: u16::MAX.into() })?;
    Ok(length.to_le_bytes())
}

fn put8(out: &mut Vec<u8>, what: &'static str, bytes: &[u8]) -> Result<(), ModexError> {
    out.push(count(what, bytes.len())?);
    out.extend(bytes);
    Ok(())
}

fn put16(out: &mut Vec<u8>, what: &'static str, bytes: &[u8]) -> Result<(), ModexError> {
    out.extend(length16(what, bytes.len())?);
    out.extend(bytes);
    Ok(())
}
