//! The parameters that Open MPI has for every BTL, with our defaults: it registers and parses them itself.
#![forbid(unsafe_code)]

/// A parameter that Open MPI registers itself for every BTL, on the fields of our template module.
#[derive(Debug)]
pub struct BaseRow {
    /// Without the prefix `btl_oxib_`.
    pub name: &'static str,
    /// Our default, as a user would write it.
    pub default: &'static str,
    /// What it sets, for the documentation.
    pub help: &'static str,
}

/// Open MPI's own set with our defaults, for the documentation; `ompi_info` has Open MPI's texts.
pub static BASE_ROWS: &[BaseRow] = &[
    base(
        "exclusivity",
        "1024",
        "Among the BTLs that reach a peer, those of the highest exclusivity are used",
    ),
    base("flags", "send,put,get", "What Open MPI may use"),
    base(
        "eager_limit",
        "12288",
        "Bytes, header included, up to which a message is sent at once; at least 128. Where it is not set: 65664 on the software device, \
         unless `max_inline` or `reconnects` is set, and 41088 on the kernel's soft RoCE; with X queues 12288 on each",
    ),
    base(
        "rndv_eager_limit",
        "12288",
        "Bytes, header included, that a longer message sends ahead; at least 128",
    ),
    base(
        "max_send_size",
        "65536",
        "Bytes, header included, of a fragment when send and receive carry a long message",
    ),
    base(
        "rdma_pipeline_send_length",
        "1048576",
        "Bytes that are sent as fragments while the rest is being registered",
    ),
    base("rdma_pipeline_frag_size", "1048576", "Bytes of one put in a pipeline"),
    base("min_rdma_pipeline_size", "1060864", "Bytes from which on a message takes the pipeline of puts"),
    base("put_limit", "unlimited", "Most bytes of one put"),
    base("get_limit", "unlimited", "Most bytes of one get"),
    base("latency", "4", "In microseconds, to rank BTLs of equal exclusivity"),
    base("bandwidth", "0", "In Mb/s, to share traffic between BTLs of equal exclusivity; 0 takes the port's"),
];

const fn base(name: &'static str, default: &'static str, help: &'static str) -> BaseRow {
    BaseRow { name, default, help }
}
