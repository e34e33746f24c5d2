//! Files of device parameters: which adapters want other settings than the defaults.
//!
//! ```text
//!   # a comment, to the end of the line
//!   [default]                            every device, where no section of its own says otherwise
//!   mtu = 2048
//!
//!   [some adapter]                       its name is for messages only
//!   vendor_id = 0x2c9, 0x15b3            as `ibv_devinfo` shows them, decimal or hexadecimal;
//!   vendor_part_id = 4119, 4121          a section means each of these with each of those
//!   receive_queues = P,128,256:S,65536,512
//! ```
//!
//! The keys are those of Open MPI's openib, in any case of letters ([`KEYS`]). Later sections and
//! later files win over earlier ones, key by key. What is not understood is an error with its place
//! ([`IniError`]): a misspelt key would otherwise be a setting that is silently not there.

#![forbid(unsafe_code)]

mod error;
mod parse;

use super::layout::Layout;
use std::fmt;
use std::sync::Arc;

pub use error::IniError;
pub use parse::KEYS;

/// Longest accepted file, in bytes.
pub const MAX_FILE: usize = 1 << 20;

/// What all files say, in the order in which they were read.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    sections: Vec<Section>,
}

/// A section of a file.
#[derive(Clone, Debug)]
struct Section {
    /// Where it begins.
    origin: Origin,
    devices: Whom,
    settings: Settings,
}

/// Which devices a section is about.
#[derive(Clone, Debug)]
enum Whom {
    /// `[default]`.
    All,
    /// Each vendor with each part.
    Listed { vendors: Vec<u32>, parts: Vec<u32> },
}

/// What files say of a device; `None`: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The layout.
    pub receive_queues: Option<Setting<Layout>>,
    /// Bytes; `None` inside: auto.
    pub mtu: Option<Setting<Option<u32>>>,
    /// Bytes; `None` inside: auto.
    pub max_inline: Option<Setting<Option<u32>>>,
    /// Short messages go by eager RDMA, or not.
    pub use_eager_rdma: Option<Setting<bool>>,
    /// True: the device is used only if a parameter names it.
    pub ignore: Option<Setting<bool>>,
}

/// A value, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// What the file says.
    pub value: T,
    /// The line that says it.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Another form of the value, from the same place.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Setting<U> {
        Setting { value: form(self.value), origin: self.origin }
    }
}

/// A line of a file. Displays as `FILE:LINE [SECTION]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the file, as messages show it.
    pub file: Arc<str>,
    /// From 1.
    pub line: usize,
    /// The section that the line is in, without brackets.
    pub section: Arc<str>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} [{}]", self.file, self.line, self.section.escape_debug())
    }
}

impl Devices {
    /// Adds a file; `name` is what messages call it.
    ///
    /// # Errors
    /// The first thing that is wrong in it. Nothing is added then.
    pub fn read(&mut self, name: &str, content: &[u8]) -> Result<(), IniError> {
        self.sections.extend(parse::file(name, content)?);
        Ok(())
    }

    /// What applies to a device: of `[default]`, then of its own sections, the last one that says
    /// something.
    pub fn settings(&self, device: (u32, u32)) -> Settings {
        let sections = self.sections_of(device);
        sections.fold(Settings::default(), |below, section| section.settings.clone().over(below))
    }

    /// The sections that are about a device, `[default]` among them, weakest first.
    pub fn origins(&self, device: (u32, u32)) -> impl Iterator<Item = &Origin> {
        self.sections_of(device).map(|section| &section.origin)
    }

    fn sections_of(&self, (vendor, part): (u32, u32)) -> impl Iterator<Item = &Section> {
        let all = self.sections.iter().filter(|section| matches!(section.devices, Whom::All));
        let own = self.sections.iter().filter(move |section| match &section.devices {
            Whom::All => false,
            Whom::Listed { vendors, parts } => vendors.contains(&vendor) && parts.contains(&part),
        });
        all.chain(own)
    }
}

impl Settings {
    /// These, and where they say nothing, those `below`.
    fn over(self, below: Self) -> Self {
        Self {
            receive_queues: self.receive_queues.or(below.receive_queues),
            mtu: self.mtu.or(below.mtu),
            max_inline: self.max_inline.or(below.max_inline),
            use_eager_rdma: self.use_eager_rdma.or(below.use_eager_rdma),
            ignore: self.ignore.or(below.ignore),
        }
    }

    /// Where it stands that the device is not to be used.
    pub fn ignored(&self) -> Option<&Origin> {
        self.ignore.as_ref().filter(|ignore| ignore.value).map(|ignore| &ignore.origin)
    }
}
