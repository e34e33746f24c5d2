//! The multicast groups that queue pairs of this process listen to, as their owner knows them.

use crate::errno::Errno;
use crate::fabric::LinkLayer;
use crate::fabric::gid::ipv4;
use crate::shm::groups::{self, Group};
use crate::shm::layout::GROUPS;
use crate::shm::map::Map;

/// Multicast LIDs (IBTA 4.1.1); the last of the range is the permissive LID.
const LIDS: std::ops::Range<u16> = 0xc000..0xffff;

/// Who listens to what, by row of the table.
#[derive(Debug, Default)]
pub struct Groups(Vec<Option<(usize, Group)>>);

/// The group of an address, for a port of this kind. EINVAL: it is none of a group.
pub fn group_of(link: LinkLayer, gid: [u8; 16], lid: u16) -> Result<Group, Errno> {
    let multicast = gid[0] == 0xff || ipv4(&gid).is_some_and(|address| address.is_multicast());
    match link {
        LinkLayer::InfiniBand if multicast && LIDS.contains(&lid) => Ok(Group { gid, lid }),
        LinkLayer::Ethernet if multicast => Ok(Group { gid, lid: 0 }),
        _ => Err(Errno::INVAL),
    }
}

impl Groups {
    /// QP `index` listens to a group from now on; once is enough. ENOMEM: the table is full.
    pub fn join(&mut self, map: &Map, index: usize, group: Group) -> Result<(), Errno> {
        if self.place(index, &group).is_some() {
            return Ok(());
        }
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at >= GROUPS {
            return Err(Errno::NOMEM);
        }
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some((index, group));
        groups::enter(map, at, index, &group);
        Ok(())
    }

    /// QP `index` no longer listens to a group. EINVAL: it did not.
    pub fn leave(&mut self, map: &Map, index: usize, group: Group) -> Result<(), Errno> {
        let at = self.place(index, &group).ok_or(Errno::INVAL)?;
        self.0[at] = None;
        groups::clear(map, at);
        Ok(())
    }

    /// Whether QP `index` listens to any.
    pub fn has(&self, index: usize) -> bool {
        self.0.iter().flatten().any(|(owner, _)| *owner == index)
    }

    fn place(&self, index: usize, group: &Group) -> Option<usize> {
        self.0.iter().position(|row| *row == Some((index, *group)))
    }
}
