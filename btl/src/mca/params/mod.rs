//! The parameters `btl_oxib_*`: one table of rows, the values of this process, and what is wrong
//! with a bad one.

/// The rows of Open MPI's own.
pub mod base;
/// The table as a page of documentation.
pub mod docs;
mod register;
/// The rows.
pub mod table;
/// From text to values.
pub mod value;

pub use register::{Template, is_set, load, register, verbosity};

use crate::mca::show::{Report, see_parameters};
use crate::protocol::layout::{self, Layout};
use opal_sys::mca_btl_base_module_t;
use std::net::IpAddr;
use std::time::Duration;
use table::{ROWS, Row};

/// Smallest fragment that ob1 can work with: its longest header (56 bytes) and our registration
/// handle.
pub const MIN_FRAGMENT: usize = 128;

/// Which devices to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Hardware ports; the software device as well when `btl` names oxib.
    Auto,
    /// The software device.
    Soft,
    /// These devices or ports, in this order.
    Named(Vec<Port>),
}

/// A device, or one port of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// All active ports, if none is named. Ports count from 1.
    pub number: Option<u8>,
}

/// The parameters of this process, checked. Fields carry the names of the parameters, see
/// [`table`].
#[derive(Debug, Clone)]
pub struct Params {
    /// The parameter `btl` names oxib: the user wants it, and wants to know when it can't be had.
    pub asked: bool,
    /// It names nothing else that reaches another process: what oxib does not do, nothing does.
    pub alone: bool,
    /// `self` is among the job's transports.
    pub has_self: bool,
    /// Where ports are looked for.
    pub device: DeviceChoice,
    /// Empty: all.
    pub if_include: Vec<Port>,
    /// Ports that are not used; not together with `if_include`.
    pub if_exclude: Vec<Port>,
    /// 0: all.
    pub max_btls: u32,
    /// 0 or 1.
    pub ignore_locality: u8,
    /// `receive_queues`.
    pub layout: Layout,
    /// The only connection managers to use; empty: all.
    pub cpc_include: Vec<String>,
    /// Connection managers not to use; not together with `cpc_include`.
    pub cpc_exclude: Vec<String>,
    /// Selection priority of ibcm, 0 to 100.
    pub ibcm_priority: u8,
    /// First wait of ibcm and xrc for an answer, before a message is repeated.
    pub ibcm_timeout: Duration,
    /// Repetitions of a message of ibcm or xrc before the peer counts as unreachable.
    pub ibcm_max_retries: u32,
    /// Selection priority of rdmacm, 0 to 100.
    pub rdmacm_priority: u8,
    /// None: the first that the port has.
    pub rdmacm_address: Option<IpAddr>,
    /// 0: one that is free.
    pub rdmacm_port: u16,
    /// Longest wait for a peer's address, and then for the route to it.
    pub rdmacm_resolve_timeout: Duration,
    /// Longest wait for the answer to a connection request.
    pub rdmacm_timeout: Duration,
    /// New attempts of rdmacm before the peer counts as unreachable.
    pub rdmacm_max_retries: u32,
    /// Bytes; `None`: auto.
    pub max_inline: Option<u32>,
    /// Eager RDMA; none: as the device and its files say.
    pub use_eager_rdma: Option<bool>,
    /// `eager_rdma_checksum`; `None`: auto.
    pub eager_rdma_checksum: Option<bool>,
    /// Slots of a ring of it; `None`: auto.
    pub eager_rdma_num: Option<u16>,
    /// Messages after which a peer is offered one.
    pub eager_rdma_threshold: u32,
    /// Peers that have one.
    pub max_eager_rdma: u16,
    /// Bytes; 0: none.
    pub send_ring_size: u32,
    /// Queue pairs that have one.
    pub max_send_rings: u16,
    /// Buffers; 0: no limit.
    pub free_list_max: u32,
    /// Buffers by which a pool grows at a time.
    pub free_list_inc: u32,
    /// Registrations; 0: no cache.
    pub reg_cache_max: u32,
    /// Bytes; 0: no limit.
    pub reg_cache_bytes: u64,
    /// Bytes; `None`: the port's.
    pub mtu: Option<u32>,
    /// Files and folders; empty: those beside the plugin.
    pub device_param_files: Vec<String>,
    /// Which of the parameters that a file may set, too, the user has set.
    pub chosen: Chosen,
    /// `None`: the best.
    pub gid_index: Option<u8>,
    /// 0: the first of the table.
    pub pkey: u16,
    /// InfiniBand service level, 0 to 15.
    pub service_level: u8,
    /// IB code.
    pub min_rnr_timer: u8,
    /// IB code.
    pub ib_timeout: u8,
    /// Transport retries, 0 to 7.
    pub ib_retry_count: u8,
    /// RNR retries, 0 to 7; 7: without end.
    pub rnr_retry: u8,
    /// RDMA READs and atomics in flight on a connection, in each direction.
    pub rd_atomic: u8,
    /// First depth of a completion queue, in entries.
    pub cq_size: u32,
    /// Put and get operations in flight on a connection.
    pub rdma_depth: u32,
    /// Most unsignalled sends in a row; 0: each is signalled.
    pub max_unsig_wrs: u16,
    /// Most bytes of send buffers that unsignalled sends of a connection keep.
    pub max_unsig_bytes: u32,
    /// Messages of receive callbacks to one peer that may wait; beyond it the peer's messages are
    /// held back.
    pub max_answers: u32,
    /// 1: the counters are printed in `MPI_Finalize`; 0: they are not.
    pub stats: u8,
    /// Longest wait of `MPI_Finalize` for all peers together.
    pub finalize_timeout: Duration,
    /// Silence after which a peer is probed; 0: none is.
    pub keepalive: Duration,
    /// Connections in a row that replace a broken one before the peer is given up.
    pub reconnects: u8,
    /// Folder; empty: none.
    pub timeline: String,
    /// As asked for here; what counts is [`verbosity`].
    pub verbose: u8,
}

/// Of the parameters that files of device parameters have, too: which the user has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chosen {
    /// `receive_queues` is set.
    pub receive_queues: bool,
    /// `max_inline` is set.
    pub max_inline: bool,
    /// `mtu` is set.
    pub mtu: bool,
}

impl Params {
    /// Reads every row through `text`, which returns what the user (or the default) says; `btl` is
    /// Open MPI's list of BTLs.
    ///
    /// # Errors
    /// A report that names the first bad parameter.
    pub fn parse<'a>(btl: Option<&str>, text: impl Fn(&Row) -> Option<&'a str>) -> Result<Self, Box<Report>> {
        let mut params = Self::blank(btl)?;
        for row in ROWS {
            let text = text(row).unwrap_or(row.default);
            let value = row.kind.parse(text);
            let applied = value.and_then(|value| (row.apply)(&mut params, value));
            applied.map_err(|problem| bad_value(row.name(), text, &problem, &row.kind.expected()))?;
        }
        Ok(params)
    }

    /// Nothing set, but for the layout: it has no empty value.
    fn blank(btl: Option<&str>) -> Result<Self, Box<Report>> {
        let layout = layout::DEFAULT;
        let layout = Layout::parse(layout)
            .map_err(|error| bad_value("receive_queues", layout, &error.to_string(), "text"))?;
        Ok(Self {
            asked: names_oxib(btl),
            alone: names_oxib_alone(btl),
            has_self: has_self(btl),
            device: DeviceChoice::Auto,
            if_include: Vec::new(),
            if_exclude: Vec::new(),
            max_btls: 0,
            ignore_locality: 0,
            layout,
            cpc_include: Vec::new(),
            cpc_exclude: Vec::new(),
            ibcm_priority: 0,
            ibcm_timeout: Duration::ZERO,
            ibcm_max_retries: 0,
            rdmacm_priority: 0,
            rdmacm_address: None,
            rdmacm_port: 0,
            rdmacm_resolve_timeout: Duration::ZERO,
            rdmacm_timeout: Duration::ZERO,
            rdmacm_max_retries: 0,
            max_inline: None,
            use_eager_rdma: None,
            eager_rdma_checksum: None,
            eager_rdma_num: None,
            eager_rdma_threshold: 0,
            max_eager_rdma: 0,
            send_ring_size: 0,
            max_send_rings: 0,
            free_list_max: 0,
            free_list_inc: 0,
            reg_cache_max: 0,
            reg_cache_bytes: 0,
            mtu: None,
            device_param_files: Vec::new(),
            chosen: Chosen::default(),
            gid_index: None,
            pkey: 0,
            service_level: 0,
            min_rnr_timer: 0,
            ib_timeout: 0,
            ib_retry_count: 0,
            rnr_retry: 0,
            rd_atomic: 0,
            cq_size: 0,
            rdma_depth: 0,
            max_unsig_wrs: 0,
            max_unsig_bytes: 0,
            max_answers: 0,
            stats: 0,
            finalize_timeout: Duration::ZERO,
            keepalive: Duration::ZERO,
            reconnects: 0,
            timeline: String::new(),
            verbose: 0,
        })
    }

    /// Notes which parameters the user has set; `is_set` tells.
    fn note_chosen(&mut self, is_set: impl Fn(&str) -> bool) {
        self.chosen = Chosen {
            receive_queues: is_set("receive_queues"),
            max_inline: is_set("max_inline"),
            mtu: is_set("mtu"),
        };
    }
}

/// Makes Open MPI's limits of a module and the layout of its port agree: limits that the user did
/// not set are lowered to the largest buffer.
///
/// `is_set` tells whether the user set a parameter.
///
/// # Errors
/// A report about a limit that the user set and no buffer holds, or that is too small for Open MPI.
pub fn fit(
    layout: &Layout,
    module: &mut mca_btl_base_module_t,
    is_set: impl Fn(&str) -> bool,
) -> Result<(), Box<Report>> {
    let largest = layout.largest_payload();
    let limits = [
        ("eager_limit", &mut module.btl_eager_limit),
        ("rndv_eager_limit", &mut module.btl_rndv_eager_limit),
        ("max_send_size", &mut module.btl_max_send_size),
    ];
    for (name, limit) in limits {
        if *limit > largest && !is_set(name) {
            *limit = largest;
        }
        check_limit(name, *limit, largest)?;
    }
    Ok(())
}

impl DeviceChoice {
    /// Parses `auto`, `soft` or `dev[:port],...`.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("the device is missing; auto takes what there is".into()),
            "auto" => Ok(Self::Auto),
            "soft" => Ok(Self::Soft),
            list => Port::list(list).map(Self::Named),
        }
    }
}

impl Port {
    /// Parses `dev[:port],...`; nothing is an empty list.
    ///
    /// # Errors
    /// What is wrong, in a few words.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        text.split(',').map(|port| Self::parse(port.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (device, number) = match text.split_once(':') {
            Some((device, number)) => (device, Some(number)),
            None => (text, None),
        };
        if device.is_empty() {
            return Err(format!("\"{text}\" names no device"));
        }
        let number = number.map(|number| number.parse().ok().filter(|&number| number > 0).ok_or(number));
        match number.transpose() {
            Ok(number) => Ok(Self { device: device.into(), number }),
            Err(number) => Err(format!("\"{number}\" is no port number in \"{text}\"; ports count from 1")),
        }
    }
}

/// True when a `btl` parameter names oxib: "self,oxib" does, "^tcp" and an unset one do not.
pub fn names_oxib(btl: Option<&str>) -> bool {
    btl.is_some_and(|list| {
        !list.trim_start().starts_with('^') && list.split(',').any(|name| name.trim() == "oxib")
    })
}

/// True when it names nothing but oxib and `self`.
pub fn names_oxib_alone(btl: Option<&str>) -> bool {
    let ours = |list: &str| list.split(',').all(|name| ["oxib", "self", ""].contains(&name.trim()));
    names_oxib(btl) && btl.is_some_and(ours)
}

/// True unless a `btl` parameter leaves `self` out.
pub fn has_self(btl: Option<&str>) -> bool {
    let Some(list) = btl.map(str::trim).filter(|list| !list.is_empty()) else { return true };
    let (named, excludes) = list.strip_prefix('^').map_or((list, false), |rest| (rest, true));
    named.split(',').any(|name| name.trim() == "self") != excludes
}

fn check_limit(name: &str, limit: usize, largest: usize) -> Result<(), Box<Report>> {
    let problem = if limit < MIN_FRAGMENT {
        "Open MPI's own header does not fit in so few bytes"
    } else if limit > largest {
        "no buffer of btl_oxib_receive_queues is that large"
    } else {
        return Ok(());
    };
    let expected = format!("a size from {MIN_FRAGMENT} to the largest buffer, {largest}");
    Err(bad_value(name, &limit.to_string(), problem, &expected))
}

/// The message about a value that can't be used.
fn bad_value(name: &str, value: &str, problem: &str, expected: &str) -> Box<Report> {
    let what = "The oxib BTL can't use the value of a parameter. It takes no part in this job; Open MPI goes on\n\
                with its other transports.";
    let remedy = format!(
        "Please correct the value, or remove it to get the default: it comes from \"mpirun --mca\", from the\n\
         environment variable OMPI_MCA_btl_oxib_{name}, or from a parameter file such as\n\
         openmpi-mca-params.conf. {}",
        see_parameters()
    );
    let report = Report::common(what, remedy)
        .with("Parameter", format!("btl_oxib_{name}"))
        .with("Value", value)
        .with("Problem", problem);
    Box::new(if expected == "text" { report } else { report.with("Expected", expected) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &'static str) -> Result<Params, Box<Report>> {
        Params::parse(None, |row| (row.name() == name).then_some(value))
    }

    #[test]
    fn every_default_is_a_good_value() {
        let params = Params::parse(Some("self,oxib"), |_| None).expect("defaults");
        assert_eq!((params.device, params.max_inline, params.mtu), (DeviceChoice::Auto, None, None));
        assert_eq!((params.min_rnr_timer, params.ib_timeout, params.cq_size), (14, 18, 8192));
        assert_eq!(params.ibcm_timeout, Duration::from_millis(500));
        assert_eq!(params.layout.queues().len(), 4);
    }

    #[test]
    fn the_default_layout_is_modest_and_never_run_dry_by_one_sender() {
        let layout = Params::parse(Some("self,oxib"), |_| None).expect("defaults").layout;
        assert_eq!(layout.smallest_p(), Some(0), "the CTS needs a P queue");
        let shared: Vec<_> = layout.queues().iter().filter_map(|queue| Some((queue, queue.srq()?))).collect();
        let posted =
            shared.iter().map(|(queue, srq)| u64::from(queue.size) * u64::from(srq.rd_init)).sum::<u64>();
        let most =
            shared.iter().map(|(queue, _)| u64::from(queue.size) * u64::from(queue.rd_num)).sum::<u64>();
        assert_eq!((posted >> 20, most >> 20), (3, 40), "MiB posted at first, MiB at most");
        assert!(shared.iter().all(|(_, srq)| srq.sd_max * 2 <= srq.rd_init));
    }

    #[test]
    fn devices_are_named_with_or_without_a_port() {
        let named = with("device", "mlx5_0:2, softib1").expect("a list").device;
        let port = |device: &str, number| Port { device: device.into(), number };
        assert_eq!(named, DeviceChoice::Named(vec![port("mlx5_0", Some(2)), port("softib1", None)]));
        assert!(with("device", "mlx5_0:0").expect_err("no port 0").text().contains("ports count from 1"));
        assert!(with("device", ":1").expect_err("no name").text().contains("names no device"));
    }

    #[test]
    fn a_bad_value_is_reported_with_name_value_problem_and_remedy() {
        let text = with("ibcm_timeout", "5 parsecs").expect_err("no time").text();
        for part in ["btl_oxib_ibcm_timeout", "5 parsecs", "is no time", "such as 500ms", "Open MPI goes on"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(with("mtu", "1000").expect_err("no MTU").text().contains("1000 is no MTU"));
        let mixed = with("receive_queues", "P,128,64:X,2048,64").expect_err("P and X");
        assert!(mixed.text().contains("do not mix"), "{}", mixed.text());
    }

    #[test]
    fn include_and_exclude_together_are_refused() {
        let both = Params::parse(None, |row| row.name().starts_with("cpc_").then_some("ibcm"));
        assert!(both.expect_err("contradiction").text().contains("only one of them"));
    }

    #[test]
    fn limits_that_nobody_set_follow_the_layout() {
        let params = with("receive_queues", "P,128,64:S,1024,64").expect("a layout");
        let mut module = mca_btl_base_module_t::zeroed();
        (module.btl_eager_limit, module.btl_rndv_eager_limit, module.btl_max_send_size) =
            (12288, 12288, 65536);
        fit(&params.layout, &mut module, |_| false).expect("lowered");
        assert_eq!((module.btl_eager_limit, module.btl_max_send_size), (1024, 1024));
        module.btl_max_send_size = 4096;
        let set =
            fit(&params.layout, &mut module, |name| name == "max_send_size").expect_err("the user's own");
        assert!(set.text().contains("no buffer of btl_oxib_receive_queues is that large"));
        module.btl_max_send_size = 64;
        assert!(
            fit(&params.layout, &mut module, |_| true)
                .expect_err("too small")
                .text()
                .contains("header does not fit")
        );
    }

    #[test]
    fn what_the_user_has_set_is_noted_also_where_it_is_the_default() {
        let mut params = with("mtu", "auto").expect("the default");
        assert_eq!(params.chosen, Chosen::default());
        params.note_chosen(|name| name == "mtu");
        assert_eq!(params.chosen, Chosen { mtu: true, ..Chosen::default() });
    }

    #[test]
    fn only_a_positive_list_names_oxib() {
        assert!(names_oxib_alone(Some("oxib, self")) && !names_oxib_alone(Some("self,oxib,tcp")));
        assert!(!names_oxib_alone(Some("^tcp")) && !names_oxib_alone(None));
        assert!([None, Some(""), Some("oxib, self"), Some("^tcp")].into_iter().all(has_self));
        assert!(!has_self(Some("oxib")) && !has_self(Some("^tcp,self")));
        assert!(names_oxib(Some("self, oxib")));
        assert!(
            ![None, Some(""), Some("self,tcp"), Some("^oxib"), Some("self,oxib2")]
                .into_iter()
                .any(names_oxib)
        );
    }
}
