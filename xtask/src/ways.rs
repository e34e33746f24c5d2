//! What the benches beside others run over: oxib with three layouts, openib and UCX on the same device, shared memory, tcp.

use std::path::Path;

use crate::workspace::Workspace;
use e2e::OpenMpi;
use e2e::mpirun::{Job, Transport};
use e2e::suite::verbs;

/// What a job goes over.
#[derive(Debug)]
pub struct Way {
    /// Its name in tables.
    pub name: &'static str,
    /// The engine, and the BTL beside `self`.
    pml: &'static str,
    btl: &'static str,
    /// It runs on the software device's drop-in libraries.
    drop_in: bool,
    /// MCA parameters, a file below the repository by its path there, and environment variables.
    parameters: &'static [(&'static str, &'static str)],
    variables: &'static [(&'static str, &'static str)],
    /// MCA parameters with which it is fastest between two processes here, as `cargo xtask bench --try` finds out.
    fastest: &'static [(&'static str, &'static str)],
}

const OB1: Way =
    Way { name: "", pml: "ob1", btl: "", drop_in: false, parameters: &[], variables: &[], fastest: &[] };
/// A parameter file of one's own takes the place of the system's, which on Debian leaves this component out; it loads UCX's libraries.
const NO_UCX: (&str, &str) = ("osc", "^ucx");
/// One-sided operations, too.
const OVER_UCX: (&str, &str) = ("osc", "ucx");
const UCX: Way = Way { pml: "ucx", btl: "tcp", ..OB1 };

/// As over an adapter: the device is what a `libibverbs.so.1` says, messages go as sends, over the default layout, and what is not short from a
/// buffer.
pub const ADAPTER: Way = Way {
    name: "oxib, as over an adapter",
    btl: "oxib",
    drop_in: true,
    parameters: &[
        ("btl_oxib_device", "softib0"),
        ("btl_oxib_use_eager_rdma", "0"),
        ("btl_oxib_max_inline", "136"),
    ],
    ..OB1
};

const ALL: [Way; 9] = [
    Way { name: "oxib", btl: "oxib", ..OB1 },
    Way {
        name: "oxib, S",
        btl: "oxib",
        parameters: &[("mca_base_param_files", "configs/s-only.conf"), NO_UCX],
        ..OB1
    },
    Way {
        name: "oxib, X",
        btl: "oxib",
        parameters: &[("mca_base_param_files", "configs/x-only.conf"), NO_UCX],
        ..OB1
    },
    Way {
        name: "openib",
        btl: "openib",
        drop_in: true,
        parameters: &[("btl_openib_allow_ib", "1"), ("btl_openib_warn_no_device_params_found", "0")],
        // Its default has one per-peer queue; over more of them messages of up to 12 KiB take 0.3 to 0.85 of the time.
        fastest: &[(
            "btl_openib_receive_queues",
            "P,128,256,192,128:P,4096,128,96,64:P,12288,64,48,32:S,65536,512,496,32",
        )],
        ..OB1
    },
    Way {
        name: "UCX rc_v",
        drop_in: true,
        parameters: &[OVER_UCX],
        variables: &[("UCX_TLS", "rc_v,self"), ("UCX_NET_DEVICES", "softib0:1")],
        ..UCX
    },
    Way {
        name: "UCX sm",
        // Without an adapter that it knows this engine is not for a job.
        parameters: &[OVER_UCX, ("pml_ucx_tls", "any"), ("pml_ucx_devices", "any")],
        variables: &[("UCX_TLS", "sm,self")],
        ..UCX
    },
    // With the default of 4 KiB, 4096 bytes take 1.6 times as long, over sm 4 times.
    Way { name: "vader", btl: "vader", fastest: &[("btl_vader_eager_limit", "16384")], ..OB1 },
    Way { name: "sm", btl: "sm", fastest: &[("btl_sm_eager_limit", "16384")], ..OB1 },
    Way { name: "tcp", btl: "tcp", ..OB1 },
];

/// All that this Open MPI has.
pub fn of(mpi: &OpenMpi) -> impl Iterator<Item = &'static Way> {
    let foreign: &[&str] = if mpi.major() < 5 { &["sm"] } else { &["openib", "vader"] };
    // An unpacked one finds its own libibverbs before the drop-in.
    let unpacked = mpi.runner().is_some();
    ALL.iter().filter(move |way| !(foreign.contains(&way.name) || unpacked && way.drop_in))
}

impl Way {
    /// Over the plugin, with whatever layout.
    pub fn is_oxib(&self) -> bool {
        self.btl == "oxib"
    }

    /// It takes the software device's drop-in libraries.
    pub fn needs_drop_in(&self) -> bool {
        self.drop_in
    }

    /// MCA parameters with which it is fastest between two processes here.
    pub fn fastest(&self) -> impl Iterator<Item = (String, String)> {
        self.fastest.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    }

    /// `program` with this many ranks; softib's segments are in `segments`.
    pub fn job(
        &self,
        mpi: &OpenMpi,
        workspace: &Workspace,
        segments: &Path,
        ranks: usize,
        program: &Path,
    ) -> Job {
        let transport = Transport::new(self.btl);
        let mut job = Job::new(mpi, ranks, &transport, program).pml(self.pml);
        job = match self.drop_in {
            true => verbs::drop_in(&workspace.verbs_folder(), segments)
                .into_iter()
                .fold(job, |job, (name, value)| job.variable(&name, &value)),
            false => job.variable("SOFTIB_DIR", &segments.to_string_lossy()),
        };
        if transport.needs_plugin() {
            job = job.plugin(&workspace.plugin_folder());
        }
        for (name, value) in self.parameters {
            let file = workspace.root.join(value);
            let value =
                if file.is_file() { file.to_string_lossy().into_owned() } else { (*value).to_owned() };
            job = job.parameter(name, &value);
        }
        self.variables.iter().fold(job, |job, (name, value)| job.variable(name, value))
    }
}
