//! Two transports in one process, over the software device, without Open MPI: what the layers below the MCA face cost.
//!
//! One thread drives both, so the figures are the software's alone: no cache line travels between
//! cores, and neither side waits.
//! Programs: `transport` (time and system calls per message, connections per second), `peers` (the same message beside others that
//! are connected and say nothing). Under
//! `valgrind --tool=callgrind` the same program counts instructions, which no other load on the machine disturbs.

use mca_btl_oxib::protocol::layout::Layout;
use mca_btl_oxib::transport::config::{Bound, Config, Signalling};
use mca_btl_oxib::transport::device::{self, Choice, Filter, PortConfig};
use mca_btl_oxib::transport::{EpId, Transport, Upcall};
use std::error::Error;
use std::time::Duration;
use verbs::Driver;

/// What benches return.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Two processes' worth of transport, and the endpoint that each has of the other.
#[derive(Debug)]
pub struct Pair {
    /// The two sides.
    pub sides: [Transport<()>; 2],
    ids: [EpId; 2],
    received: u64,
}

impl Pair {
    /// Opens both on the software device with this layout; `job` keeps pairs apart.
    ///
    /// # Errors
    /// The layout does not parse, or the device cannot be opened.
    pub fn open(layout: &str, job: u64) -> Result<Pair> {
        let names = [job << 32, job << 32 | 1];
        let mut sides = [open(layout, names[0])?, open(layout, names[1])?];
        let adverts = [sides[0].adverts().to_vec(), sides[1].adverts().to_vec()];
        let ids = [sides[0].add(names[1], &adverts[1])?, sides[1].add(names[0], &adverts[0])?];
        Ok(Pair { sides, ids, received: 0 })
    }

    /// Sends `len` bytes from one side.
    pub fn send(&mut self, from: usize, len: usize) {
        send(&mut self.sides[from], self.ids[from], len);
    }

    /// Lets one side look around once.
    pub fn poll(&mut self, side: usize) {
        let transport = &mut self.sides[side];
        if !transport.poll() {
            return;
        }
        while let Some(delivery) = transport.take_message() {
            self.received += 1;
            transport.delivered(delivery);
        }
        while let Some(what) = transport.take_upcall() {
            if let Upcall::Deliver(delivery) = what {
                self.received += 1;
                transport.delivered(delivery);
            }
        }
    }

    /// Lets both look around until `messages` have arrived in all.
    pub fn until(&mut self, messages: u64) {
        while self.received < messages {
            self.poll(0);
            self.poll(1);
        }
    }

    /// Messages that have arrived at either side.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// One message there and one back, `count` times.
    pub fn ping_pong(&mut self, len: usize, count: u64) {
        for _ in 0..count {
            for from in [0, 1] {
                let wanted = self.received + 1;
                self.send(from, len);
                while self.received < wanted {
                    self.poll(1 - from);
                    self.poll(from);
                }
            }
        }
    }

    /// Takes both down.
    pub fn close(self) {
        self.sides.into_iter().for_each(Transport::close);
    }
}

/// One process's worth of transport, on the software device with this layout.
///
/// # Errors
/// The layout does not parse, or the device cannot be opened.
pub fn open(layout: &str, name: u64) -> Result<Transport<()>> {
    let soft = || Ok(Driver::from_table(softib::driver_table()));
    let port = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
    let ports = device::find(&Choice::Soft, &Filter::default(), port, soft)?;
    let transport = Transport::open(&ports[0], config(layout)?, name)?;
    transport.listen()?;
    Ok(transport)
}

/// Sends `len` bytes, as the face does: inline if that works at once, else through a buffer.
pub fn send(side: &mut Transport<()>, id: EpId, len: usize) {
    if side.sendi(id, TAG, [&DATA[..len], &[]]) {
        return;
    }
    if let Some(mut buf) = side.take(id, len, false) {
        buf.payload()[..len].copy_from_slice(&DATA[..len]);
        side.send(id, TAG, buf, len);
    }
}

/// What is sent.
static DATA: [u8; 1 << 16] = [7; 1 << 16];

/// Any tag of the upper layer will do.
pub const TAG: u8 = 0x40;

/// The parameters' defaults.
fn config(layout: &str) -> Result<Config> {
    Ok(Config {
        layout: Layout::parse(layout)?,
        max_inline: 136,
        pool_limit: 1024,
        pool_grow: 32,
        cq_size: 8192,
        signalling: Signalling { most: 16, most_bytes: 4096 },
        hold: Bound::of_peer(64),
        min_rnr_timer: 13,
        timeout: 18,
        retry_count: 7,
        rnr_retry: 7,
        rd_atomic: 4,
        rdma_depth: 256,
        service_level: 0,
        drain: Duration::from_secs(5),
        keepalive: Duration::from_secs(5),
        gathers: false,
        send_rings: (1 << 16, 64),
        eager: None,
        reconnects: 8,
        keep_timelines: false,
        xrc_domain: std::env::temp_dir().join(format!("oxib-xrc-bench-{}", std::process::id())),
        cpc: cpc::Config::default(),
    })
}
