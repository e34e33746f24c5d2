//! What the transport hands in: how its queue pairs are to be, and which endpoints there are.

use std::sync::Arc;

use verbs::{
    Access, AhAttr, Buf, Context, Cq, Gid, InitAttr, Lid, LinkLayer, Mtu, Pd, QKey, QpCap, Srq, SrqNum, Xrcd,
};

use crate::wire::Layout;
use crate::wire::domain::DomainId;
use crate::{EndpointKey, Error, ProcessName, StreamNum};

/// One queue of every endpoint: where its QP's completions go and what it holds.
#[derive(Clone, Debug)]
pub struct QueuePlan {
    /// Completions of send requests.
    pub send_cq: Arc<Cq>,
    /// Completions of receives.
    pub recv_cq: Arc<Cq>,
    /// The shared receive queue; `None` for a per-peer queue.
    pub srq: Option<Arc<Srq>>,
    /// Work requests, SGEs and inline bytes that the QP has room for.
    pub cap: QpCap,
    /// RNR retries, 0 to 7; 7 repeats for ever.
    pub rnr_retry: u8,
}

/// The setting that the queues follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveQueues {
    /// Equal for two processes if and only if the text is.
    pub fingerprint: u32,
    /// Every queue spelled out, for the user.
    pub text: String,
}

/// The port that the QPs use.
#[derive(Clone, Debug)]
pub struct PortPlan {
    /// The open device.
    pub ctx: Arc<Context>,
    /// Port number, from 1.
    pub num: u8,
    /// Index of `gid` in the port's table.
    pub gid_index: u8,
    /// The port's GID; used on Ethernet and between subnets.
    pub gid: Gid,
    /// Ethernet: further rows of the port's table that connections may start from, each with its GID.
    pub further_gids: Vec<(u8, Gid)>,
    /// The port's LID; 0 on Ethernet.
    pub lid: Lid,
    /// Active MTU of the port; a connection uses the smaller one of both sides.
    pub mtu: Mtu,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// InfiniBand or Ethernet (RoCE, iWARP).
    pub link_layer: LinkLayer,
}

/// How every endpoint's QPs are to be. One plan per port.
#[derive(Clone, Debug)]
pub struct QpPlan {
    /// Protection domain of the QPs and of the connection managers' own buffers.
    pub pd: Arc<Pd>,
    /// The queues, 1 to 15, in the layout's order.
    pub queues: Vec<QueuePlan>,
    /// What the user has asked for with them; peers that have asked for something else are refused.
    pub receive_queues: ReceiveQueues,
    /// The port that they use.
    pub port: PortPlan,
    /// What peers may do to memory through the QPs.
    pub access: Access,
    /// RNR NAK timer code, 5 bits: how long a peer waits when there is no receive (12 = 0.64 ms; 0 means 655 ms).
    pub min_rnr_timer: u8,
    /// Local ACK timeout code, 5 bits, 4.096 µs * 2^n.
    pub timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_cnt: u8,
    /// RDMA reads and atomics that a QP has outstanding.
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics of the peer that a QP serves at a time.
    pub max_dest_rd_atomic: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Set if all queues are X queues; then `xrc` is the only component that serves them.
    pub xrc: Option<XrcPlan>,
}

impl QpPlan {
    /// Number and kinds of the queues.
    pub(crate) fn layout(&self) -> Result<Layout, Error> {
        let layout = Layout::new(self.queues.iter().map(|queue| queue.srq.is_some()));
        layout.ok_or(Error::Plan("it needs 1 to 15 queues"))
    }

    pub(crate) fn has_srq(&self) -> bool {
        self.queues.iter().any(|queue| queue.srq.is_some())
    }

    /// The RNR retries of a connection that serves all queues.
    pub(crate) fn rnr_retry(&self) -> u8 {
        self.queues.iter().map(|queue| queue.rnr_retry).max().unwrap_or(0)
    }

    /// What takes a queue pair of a connection to INIT.
    pub(crate) fn init_attr(&self) -> InitAttr {
        let PortPlan { num: port, pkey_index, .. } = self.port;
        InitAttr { port, pkey_index, access: self.access, qkey: QKey(0) }
    }

    /// The way to a port from our GID `from`. Packets to it need a global routing header on Ethernet, or to another subnet.
    pub(crate) fn way_to(&self, dlid: Lid, gid: Option<Gid>, from: Option<Gid>) -> AhAttr {
        let gid = gid.filter(|gid| is_routed(self.port.link_layer, &self.port.gid, gid));
        let gid = gid.map(|gid| (gid, self.port.row_of(from), HOP_LIMIT));
        AhAttr { port: self.port.num, dlid, sl: self.sl, gid }
    }
}

impl PortPlan {
    fn row_of(&self, gid: Option<Gid>) -> u8 {
        row_of(self.gid_index, &self.further_gids, gid)
    }
}

/// The row of a GID of ours; of one that is none, which a peer may have named, the port's own.
fn row_of(own: u8, further: &[(u8, Gid)], gid: Option<Gid>) -> u8 {
    let further = further.iter().find(|(_, known)| Some(*known) == gid);
    further.map_or(own, |(row, _)| *row)
}

/// Hop limit of packets with a global routing header: any router may pass them on.
const HOP_LIMIT: u8 = 64;

/// The first eight bytes of a GID are its subnet's prefix (IBTA 4.1.1); RoCE knows no other address than the GID (annex A16.4.1).
fn is_routed(link_layer: LinkLayer, ours: &Gid, theirs: &Gid) -> bool {
    link_layer == LinkLayer::Ethernet || ours.0[..8] != theirs.0[..8]
}

/// What X queues need besides: a domain, and send queue pairs that lead to nodes instead of processes.
#[derive(Clone, Debug)]
pub struct XrcPlan {
    /// The domain of this node's processes.
    pub domain: Arc<Xrcd>,
    /// Its name.
    pub id: DomainId,
    /// Numbers of the queues' shared receive queues, in the layout's order.
    pub srqs: Vec<SrqNum>,
    /// Completions of the send queue pairs. They receive nothing.
    pub send_cq: Arc<Cq>,
    /// Room of a send queue pair.
    pub cap: QpCap,
}

/// The one very small receive of an endpoint (seed 004): it takes the peer's clear-to-send, which may come before the main
/// thread has posted anything. Allocated with the endpoint by the transport, posted by the helper thread.
#[derive(Debug)]
pub struct CtsRecv {
    /// Index of the queue: the per-peer queue with the smallest buffers.
    pub queue: usize,
    /// Where the clear-to-send goes.
    pub buf: Buf,
    /// The id of its completion.
    pub wr_id: u64,
}

/// A peer that may connect to us and that we may connect to.
#[derive(Debug)]
pub struct EndpointPlan {
    /// The transport's name for it.
    pub key: EndpointKey,
    /// The process at the other end.
    pub peer: ProcessName,
    /// What its component of the chosen name has published; empty = take it from the choice.
    pub peer_blob: Vec<u8>,
    /// The receive for its clear-to-send; `None` in layouts without a per-peer queue.
    pub cts: Option<CtsRecv>,
    /// RoCE: the GIDs that the connection goes over; `None`: those of the two ports, or as the choice says.
    pub gids: Option<GidPair>,
    /// X queues: what the peer's messages to us have to call themselves, for the queue pair that they come through does not
    /// say whose they are.
    pub label: u32,
    /// P and S queues: the stream that the endpoint goes on with, if its peer does.
    pub stream: StreamNum,
}

/// Ends the name under which a component at an alternate port publishes itself.
pub const ALTERNATE: &str = "_alternate";

/// The component to use for a peer, and what it published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the component, with [`ALTERNATE`] behind it if it is at the alternate port.
    pub component: String,
    /// The blob that the peer's module of that component has published.
    pub peer_blob: Vec<u8>,
    /// RoCE: the GIDs that the connection goes over; `None`: those of the two ports. Apart, for each idle peer has a choice.
    pub gids: Option<Box<GidPair>>,
    /// The same over the other ports of both devices, if they have one each.
    pub alternate: Option<Box<Choice>>,
}

impl Choice {
    /// The next connection goes over the other port. False: there is none.
    pub fn turn(&mut self) -> bool {
        let Some(other) = self.alternate.take() else { return false };
        let this = std::mem::replace(self, *other);
        self.alternate = Some(Box::new(this));
        true
    }

    /// It goes over the alternate port.
    pub fn is_alternate(&self) -> bool {
        self.component.ends_with(ALTERNATE)
    }
}

/// Both ends of a connection over RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidPair {
    /// The GID that our packets come from.
    pub ours: Gid,
    /// The GID that they go to.
    pub theirs: Gid,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(subnet: u8, port: u8) -> Gid {
        Gid(std::array::from_fn(|i| if i < 8 { subnet } else { port }))
    }

    #[test]
    fn a_choice_turns_to_the_other_port_and_back() {
        let choice = |component: &str, alternate| Choice {
            component: component.to_owned(),
            peer_blob: vec![component.len() as u8],
            gids: None,
            alternate,
        };
        let mut only = choice("ibcm", None);
        assert!(!only.turn() && only == choice("ibcm", None) && !only.is_alternate());
        let first = choice("ibcm", Some(Box::new(choice("ibcm_alternate", None))));
        let mut turned = first.clone();
        assert!(turned.turn() && turned.is_alternate());
        assert_eq!(turned, choice("ibcm_alternate", Some(Box::new(only))));
        assert!(turned.turn() && turned == first);
    }

    #[test]
    fn a_connection_starts_from_the_row_of_its_gid_and_from_the_ports_own_if_that_is_none() {
        let further = [(5, gid(5, 5)), (7, gid(7, 7))];
        let rows = [Some(gid(7, 7)), Some(gid(3, 3)), Some(gid(9, 9)), None];
        assert_eq!(rows.map(|gid| row_of(3, &further, gid)), [7, 3, 3, 3]);
    }

    #[test]
    fn a_global_routing_header_goes_to_every_port_on_ethernet_and_to_other_subnets_on_infiniband() {
        let (near, far) = (gid(1, 2), gid(2, 2));
        assert!(is_routed(LinkLayer::Ethernet, &gid(1, 1), &near));
        assert!(is_routed(LinkLayer::Ethernet, &gid(1, 1), &far));
        assert!(!is_routed(LinkLayer::InfiniBand, &gid(1, 1), &near));
        assert!(is_routed(LinkLayer::InfiniBand, &gid(1, 1), &far));
        let mut last_byte_differs = gid(1, 2);
        last_byte_differs.0[7] ^= 1;
        assert!(is_routed(LinkLayer::InfiniBand, &gid(1, 1), &last_byte_differs));
    }
}
