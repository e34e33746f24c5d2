//! Every parameter of oxib, one row each. Registration, `ompi_info`, documentation and parsing read
//! this table; a row names the field of [`Params`] that it fills, so there is none that nothing
//! reads.
#![forbid(unsafe_code)]

use super::value::{Kind, Value};
use super::{DeviceChoice, Params, Port};
use crate::protocol::layout::{self, Layout};
use std::ffi::CStr;
use std::time::Duration;

/// One parameter.
#[derive(Debug)]
pub struct Row {
    /// Without the prefix `btl_oxib_`.
    pub name: &'static CStr,
    /// What it takes.
    pub kind: Kind,
    /// As a user would write it.
    pub default: &'static str,
    /// 1 to 3: for users, 4 to 6: for tuners, 7 to 9: for developers; `ompi_info --level`.
    pub level: u8,
    /// Who must agree on the value.
    pub scope: Scope,
    /// One sentence.
    pub help: &'static str,
    /// Puts the value where it is read; says what is wrong with one that the kind lets pass.
    pub(super) apply: fn(&mut Params, Value) -> Result<(), String>,
}

/// Who must agree on the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each process may have its own.
    Local,
    /// All processes should have the same for good results.
    All,
    /// Processes with different values do not talk to each other.
    AllEqual,
}

/// Rows of numbers.
macro_rules! number {
    ($name:literal, $min:literal ..= $max:literal, $default:literal, $level:literal, $help:literal, $field:ident) => {
        Row {
            name: $name,
            kind: Kind::Number { min: $min, max: $max },
            default: $default,
            level: $level,
            scope: Scope::Local,
            help: $help,
            apply: |params, value| {
                params.$field = value.narrow();
                Ok(())
            },
        }
    };
}

/// The row that is needed before the others.
pub(super) const VERBOSE: &CStr = c"verbose";

/// The table, in the order of the documentation.
pub static ROWS: &[Row] = &[
    Row {
        name: c"device",
        kind: Kind::Text,
        default: "auto",
        level: 1,
        scope: Scope::Local,
        help: "Which RDMA devices to use: auto (every active port of the hardware; the software device too when the \
               parameter btl names oxib), soft (the software device only), or a list of dev[:port]",
        apply: |params, value| DeviceChoice::parse(&value.text()).map(|choice| params.device = choice),
    },
    Row {
        name: c"if_include",
        kind: Kind::Text,
        default: "",
        level: 1,
        scope: Scope::Local,
        help: "Of the ports that the parameter device finds, use only these: dev[:port],...; empty means all",
        apply: |params, value| {
            params.if_include = Port::list(&value.text())?;
            Ok(())
        },
    },
    Row {
        name: c"if_exclude",
        kind: Kind::Text,
        default: "",
        level: 1,
        scope: Scope::Local,
        help: "Of the ports that the parameter device finds, do not use these: dev[:port],...; not together with if_include",
        apply: |params, value| {
            params.if_exclude = Port::list(&value.text())?;
            if params.if_include.is_empty() || params.if_exclude.is_empty() {
                return Ok(());
            }
            Err("if_include is set too; only one of them can be".into())
        },
    },
    Row {
        name: c"device_param_files",
        kind: Kind::Words,
        default: "",
        level: 4,
        scope: Scope::All,
        help: "Files with settings for devices by vendor and part, later ones win; a folder stands for its *.ini files in the \
               order of their names. Empty means oxib-device-params.ini and the folder oxib-device-params.d beside the plugin, \
               if they are there. A parameter that is set wins over what a file says (docs/tuning.md, section 5.1)",
        apply: |params, value| {
            params.device_param_files = value.words();
            Ok(())
        },
    },
    number!(
        c"max_btls",
        0..=255,
        "0",
        3,
        "Use at most so many of the ports that are left then, the first ones; each is a module of its own, and Open MPI shares \
         long messages between them. 0 means all",
        max_btls
    ),
    number!(
        c"ignore_locality",
        0..=1,
        "0",
        4,
        "1 uses all ports alike; 0 leaves out a port that is far from the process' processors (NUMA) if a nearer one is on its subnet, or on \
         all of its RoCE networks, unless device or if_include names ports, and gives other far ports one microsecond more of latency",
        ignore_locality
    ),
    Row {
        name: c"receive_queues",
        kind: Kind::Text,
        // The reasons are in configs/default.conf.
        default: layout::DEFAULT,
        level: 4,
        scope: Scope::AllEqual,
        help: "The queues of a connection, ascending by buffer size, separated by colons: \
               P,size,rd_num[,rd_low[,rd_win[,rd_rsv[,rd_init]]]] has buffers per peer and credits, \
               S,size,rd_num[,rd_low[,sd_max[,rd_init[,srq_limit]]]] shares its buffers between all peers; X is as S over XRC, with one send \
               queue pair for all processes of a node, and is not mixed with P or S",
        apply: |params, value| {
            params.layout = Layout::parse(&value.text()).map_err(|error| error.to_string())?;
            Ok(())
        },
    },
    Row {
        name: c"cpc_include",
        kind: Kind::Words,
        default: "",
        level: 3,
        scope: Scope::All,
        help: "The only connection managers to use (known: ibcm, rdmacm, xrc); empty means all",
        apply: |params, value| {
            params.cpc_include = value.words();
            Ok(())
        },
    },
    Row {
        name: c"cpc_exclude",
        kind: Kind::Words,
        default: "",
        level: 3,
        scope: Scope::All,
        help: "Connection managers not to use; not together with cpc_include",
        apply: |params, value| {
            params.cpc_exclude = value.words();
            exclusive(params)
        },
    },
    number!(
        c"ibcm_priority",
        0..=100,
        "40",
        6,
        "Priority of the connection manager ibcm; two processes take the one that either of them ranks highest",
        ibcm_priority
    ),
    Row {
        name: c"ibcm_timeout",
        kind: Kind::Time { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        default: "500ms",
        level: 5,
        scope: Scope::Local,
        help: "How long ibcm, and xrc, waits for an answer before it repeats a message for the first time; it waits longer each time",
        apply: |params, value| {
            params.ibcm_timeout = value.time();
            Ok(())
        },
    },
    number!(
        c"ibcm_max_retries",
        1..=255,
        "25",
        5,
        "How often ibcm, and xrc, repeats a message before the peer counts as unreachable",
        ibcm_max_retries
    ),
    number!(
        c"rdmacm_priority",
        0..=100,
        "30",
        6,
        "Priority of the connection manager rdmacm, which needs an IP address on the port; below ibcm's, which does not",
        rdmacm_priority
    ),
    Row {
        name: c"rdmacm_address",
        kind: Kind::Text,
        default: "",
        level: 5,
        scope: Scope::Local,
        help: "IP address, version 4 or 6, that rdmacm listens on and connects from; empty: the first that the port has, on \
               RoCE all that are in its GID table",
        apply: |params, value| {
            let text = value.text();
            let parse = |text: &str| {
                text.parse().map_err(|_| "is no IP address, such as 10.0.0.1 or fd00::1".to_owned())
            };
            params.rdmacm_address = if text.is_empty() { None } else { Some(parse(&text)?) };
            Ok(())
        },
    },
    number!(
        c"rdmacm_port",
        0..=65535,
        "0",
        5,
        "Port that rdmacm listens on, for at most one process of each address; 0: one that is free",
        rdmacm_port
    ),
    Row {
        name: c"rdmacm_resolve_timeout",
        kind: Kind::Time { min: Duration::from_millis(1), max: Duration::from_secs(600) },
        default: "2s",
        level: 5,
        scope: Scope::Local,
        help: "How long rdmacm waits for the address of a peer to be resolved, and then for the route",
        apply: |params, value| {
            params.rdmacm_resolve_timeout = value.time();
            Ok(())
        },
    },
    Row {
        name: c"rdmacm_timeout",
        kind: Kind::Time { min: Duration::from_millis(1), max: Duration::from_secs(600) },
        default: "20s",
        level: 5,
        scope: Scope::Local,
        help: "How long rdmacm waits for the answer to a connection request before it tries again",
        apply: |params, value| {
            params.rdmacm_timeout = value.time();
            Ok(())
        },
    },
    number!(
        c"rdmacm_max_retries",
        0..=255,
        "7",
        5,
        "How often rdmacm tries again, after pauses of 50 ms and more, before a peer counts as unreachable",
        rdmacm_max_retries
    ),
    Row {
        name: c"max_inline",
        kind: Kind::AutoBytes { min: 0, max: 1 << 20 },
        default: "auto",
        level: 5,
        scope: Scope::Local,
        help: "Most bytes that travel inside a work request instead of being fetched from a buffer; auto takes what suits \
               the smallest queue, on the kernel's soft RoCE 512, and on the software device, without reconnects, messages of up to \
               65 KiB; 0 means none",
        apply: |params, value| {
            params.max_inline = (value != Value::Auto).then(|| value.narrow());
            Ok(())
        },
    },
    Row {
        name: c"use_eager_rdma",
        kind: Kind::SearchOr { min: 0, max: 1 },
        default: "auto",
        level: 5,
        scope: Scope::Local,
        help: "Whether short and middle messages of peers that send many of them are written into rings in this process' memory (eager RDMA), which it looks \
               at: 1 yes, 0 no; auto, or -1: on the software device, on soft RoCE, and where a device file says so. Not with reconnects, \
               not over X or S queues, not on iWARP",
        apply: |params, value| {
            params.use_eager_rdma = (value != Value::Auto).then(|| value.narrow::<u8>() != 0);
            Ok(())
        },
    },
    Row {
        name: c"eager_rdma_checksum",
        kind: Kind::SearchOr { min: 0, max: 1 },
        default: "auto",
        level: 6,
        scope: Scope::Local,
        help: "Whether messages by eager RDMA that come to this process have checksums, by which it sees that its device has written all of one: 1 yes, 0 \
               no, which needs a device that writes the bytes of one request in the order of their addresses; auto, or -1: yes, but for the \
               software device, and adapters whose device file says that they use eager RDMA. Messages with checksums have up to 112 bytes, \
               Open MPI's header among them; longer ones go by SEND",
        apply: |params, value| {
            params.eager_rdma_checksum = (value != Value::Auto).then(|| value.narrow::<u8>() != 0);
            Ok(())
        },
    },
    Row {
        name: c"eager_rdma_num",
        kind: Kind::SearchOr { min: 4, max: 4096 },
        default: "auto",
        level: 6,
        scope: Scope::Local,
        help: "How many slots of 128 bytes a ring of eager RDMA has, rounded down to a power of two; auto, or -1: 4096 on the software device, 1024 on \
               others. Where there is no memory for so many a ring has a quarter of them. A message of up to 120 bytes, Open MPI's header among them, takes \
               one, and one of up to 12408 bytes (on other devices than the software device what goes inline) as many as it needs. Messages that find it \
               full go by SEND",
        apply: |params, value| {
            params.eager_rdma_num = (value != Value::Auto).then(|| value.narrow());
            Ok(())
        },
    },
    number!(
        c"eager_rdma_threshold",
        1..=1000000000,
        "16",
        6,
        "After how many messages a peer is offered a ring of eager RDMA",
        eager_rdma_threshold
    ),
    number!(
        c"max_eager_rdma",
        0..=1024,
        "16",
        6,
        "How many peers have rings of eager RDMA at a time; one that does not use its ring gives its place to one that sends much",
        max_eager_rdma
    ),
    number!(
        c"send_ring_size",
        0..=16777216,
        "65536",
        6,
        "Bytes of registered memory, at most, and rounded up to a power of two, that a queue pair gets for messages too long to go inline, of up to an \
         eighth of that: 8 KiB when 16 have gone from buffers, and twice as much each time that 16 more have found no room there. 0: none",
        send_ring_size
    ),
    number!(
        c"max_send_rings",
        0..=65535,
        "64",
        6,
        "How many queue pairs of a port have such memory at a time (send_ring_size); it is theirs until their connection ends",
        max_send_rings
    ),
    number!(
        c"free_list_max",
        0..=16777216,
        "1024",
        4,
        "Send buffers of each queue that may be out; a sender that can wait does so when they are, one peer gets no more than \
         half of them; 0 means no limit",
        free_list_max
    ),
    number!(
        c"free_list_inc",
        1..=65536,
        "32",
        6,
        "Buffers by which a pool grows at a time; a large one grows by an eighth",
        free_list_inc
    ),
    number!(
        c"reg_cache_max",
        0..=1048576,
        "8192",
        4,
        "Registrations of user memory that a port keeps for the next transfer; 0 means none, as does mpi_leave_pinned 0",
        reg_cache_max
    ),
    Row {
        name: c"reg_cache_bytes",
        kind: Kind::Bytes { min: 0, max: 1 << 50 },
        default: "0",
        level: 4,
        scope: Scope::Local,
        help: "User memory that a port keeps registered at most, what is in use apart; 0 means no limit but half of what the \
               process may lock (ulimit -l)",
        apply: |params, value| {
            params.reg_cache_bytes = value.number();
            Ok(())
        },
    },
    Row {
        name: c"mtu",
        kind: Kind::AutoBytes { min: 256, max: 4096 },
        default: "auto",
        level: 4,
        scope: Scope::All,
        help: "Path MTU: 256, 512, 1k, 2k or 4k; auto is the port's; two processes take the smaller one of theirs",
        apply: |params, value| match value {
            Value::Number(bytes) if !bytes.is_power_of_two() => Err(format!("{bytes} is no MTU")),
            value => {
                params.mtu = (value != Value::Auto).then(|| value.narrow());
                Ok(())
            }
        },
    },
    Row {
        name: c"gid_index",
        kind: Kind::SearchOr { min: 0, max: 255 },
        default: "-1",
        level: 3,
        scope: Scope::Local,
        help: "Row of the port's GID table; -1 takes row 0 on InfiniBand and on RoCE, for each peer, the row of the network that both are on, else \
               version 2 before 1, then an IPv4 address before a global before a link-local IPv6 address",
        apply: |params, value| {
            params.gid_index = (value != Value::Auto).then(|| value.narrow());
            Ok(())
        },
    },
    number!(
        c"pkey",
        0..=65535,
        "0",
        3,
        "Partition key to look for in the port's table; 0 takes the first",
        pkey
    ),
    number!(c"service_level", 0..=15, "0", 3, "InfiniBand service level of all connections", service_level),
    Row {
        name: c"min_rnr_timer",
        kind: Kind::RnrTimer,
        default: "1ms",
        level: 6,
        scope: Scope::Local,
        help: "How long a sender is told to wait when a shared queue of ours is empty",
        apply: |params, value| {
            params.min_rnr_timer = value.narrow();
            Ok(())
        },
    },
    Row {
        name: c"ib_timeout",
        kind: Kind::AckTimeout,
        default: "1s",
        level: 5,
        scope: Scope::Local,
        help: "How long the device waits for an acknowledgement before it repeats a packet; times ib_retry_count this is \
               how long a dead peer goes unnoticed",
        apply: |params, value| {
            params.ib_timeout = value.narrow();
            Ok(())
        },
    },
    number!(
        c"ib_retry_count",
        0..=7,
        "7",
        5,
        "How often the device repeats an unacknowledged packet",
        ib_retry_count
    ),
    number!(
        c"rnr_retry",
        0..=7,
        "7",
        6,
        "How often the device repeats a packet that found a shared queue empty; 7 means without end",
        rnr_retry
    ),
    number!(
        c"rd_atomic",
        1..=128,
        "16",
        5,
        "RDMA reads and atomics in flight on a connection, in each direction; the device's own limit applies too",
        rd_atomic
    ),
    number!(
        c"cq_size",
        1..=4194304,
        "8192",
        6,
        "First depth of a completion queue; it grows with the number of connections",
        cq_size
    ),
    number!(
        c"rdma_depth",
        1..=32767,
        "256",
        6,
        "Put and get operations in flight on a connection, besides messages",
        rdma_depth
    ),
    number!(
        c"max_unsig_wrs",
        0..=32767,
        "16",
        6,
        "Sends in a row that the device does not report; a report is waited for when something runs short, and costs \
         time. 0: it reports each",
        max_unsig_wrs
    ),
    number!(
        c"max_unsig_bytes",
        0..=2147483647,
        "4096",
        6,
        "Bytes of send buffers and send rings that sends without a report may keep on a connection; inline messages keep none",
        max_unsig_bytes
    ),
    number!(
        c"max_answers",
        1..=4294967295,
        "64",
        6,
        "Messages that receive callbacks have sent to a peer and that could not go yet; beyond it the peer's messages wait \
         until some have gone. They are not read, and their sender comes to stand still",
        max_answers
    ),
    number!(
        c"stats",
        0..=1,
        "0",
        4,
        "1: each process prints at its end what its ports have counted (docs/counters.md)",
        stats
    ),
    Row {
        name: c"finalize_timeout",
        kind: Kind::Time { min: Duration::ZERO, max: Duration::from_secs(3600) },
        default: "10s",
        level: 5,
        scope: Scope::Local,
        help: "How long MPI_Finalize waits for a peer that does not take what is still queued to it, or does not acknowledge what \
               it was sent; for all peers together. A peer that has not taken all by then reports the loss of the connection when it goes on",
        apply: |params, value| {
            params.finalize_timeout = value.time();
            Ok(())
        },
    },
    Row {
        name: c"keepalive",
        kind: Kind::Time { min: Duration::ZERO, max: Duration::from_secs(3600) },
        default: "600ms",
        level: 6,
        scope: Scope::Local,
        help: "A peer that has said nothing for so long while nothing is on its way to it is asked, through its device only, whether it \
               is there; one that is gone is found after twice that time and what ib_timeout and ib_retry_count take. 0s: nobody is asked",
        apply: |params, value| {
            params.keepalive = value.time();
            Ok(())
        },
    },
    number!(
        c"reconnects",
        0..=100,
        "0",
        6,
        "How often in a row a connection that breaks (a queue pair in error, a port that was down) is replaced by another one, over \
         which what has not arrived is sent again, before its peer is given up; in a row: while no message passes in between. If the device has two ports, it \
         may go over the other one, and connections leave a port that has been down for 100 ms. 0: never, the peer is lost. Not on iWARP; X queues go on over another send queue pair, whatever this says",
        reconnects
    ),
    Row {
        name: c"timeline",
        kind: Kind::Text,
        default: "",
        level: 5,
        scope: Scope::Local,
        help: "Folder into which every process writes, in MPI_Finalize, when what happened to each of its connections \
               (oxib-JOB-RANK-DEVICE-PORT.json, microseconds since the first step); empty: nowhere",
        apply: |params, value| {
            params.timeline = value.text();
            Ok(())
        },
    },
    Row {
        name: VERBOSE,
        kind: Kind::Verbosity,
        default: "error",
        level: 2,
        scope: Scope::Local,
        help: "How much oxib tells: errors only, warnings, what happens once per process (info), per connection (debug) or \
               per message (trace); btl_base_verbose counts too, the higher one wins",
        apply: |params, value| {
            params.verbose = value.narrow();
            Ok(())
        },
    },
];

/// Include and exclude contradict each other.
fn exclusive(params: &mut Params) -> Result<(), String> {
    match params.cpc_include.is_empty() || params.cpc_exclude.is_empty() {
        true => Ok(()),
        false => Err("cpc_include is set too; only one of them can be".into()),
    }
}

impl Row {
    /// The name, for messages.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// Sentence and accepted values, as `ompi_info` shows them.
    pub fn full_help(&self) -> String {
        match self.kind {
            Kind::Text => self.help.to_owned(),
            kind => format!("{} ({})", self.help, kind.expected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::base::BASE_ROWS;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_help_of_a_layout_names_its_fields_as_the_errors_do() {
        use crate::protocol::layout::Field::*;
        let row = ROWS.iter().find(|row| row.name() == "receive_queues").expect("a row");
        for field in [RdNum, RdLow, RdWin, RdRsv, SdMax, RdInit, SrqLimit] {
            assert!(row.help.contains(field.name()), "{field} is missing in: {}", row.help);
        }
    }

    #[test]
    fn names_are_unique_and_helps_are_one_sentence() {
        let names: HashSet<_> =
            ROWS.iter().map(Row::name).chain(BASE_ROWS.iter().map(|row| row.name)).collect();
        assert_eq!(names.len(), ROWS.len() + BASE_ROWS.len());
        for row in ROWS {
            assert!((1..=9).contains(&row.level), "{}", row.name());
            assert!(
                row.help.len() > 20 && !row.help.ends_with('.') && !row.help.contains("  "),
                "{}",
                row.name()
            );
        }
    }
}
