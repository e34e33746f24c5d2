//! Which ports are near to the processors that this process may use.
//!
//! A device sits at one NUMA node; a process at another reaches it over the link between their processors. What the kernel says of that:
//!
//! ```text
//!   /proc/self/status                                 Cpus_allowed_list: 0-15
//!   /sys/devices/system/node/node1/cpulist            16-31
//!   /sys/devices/system/node/node1/distance           21 10          to node 0, to node 1
//!   /sys/class/infiniband/mlx5_0/device/numa_node     1              -1: at none
//! ```
//!
//! The distance of a device is that to the nearest node of the process, so for a process that is not bound all devices are near.
#![forbid(unsafe_code)]

use super::device::{Port, is_ethernet};
use crate::protocol::roce::Rows;
use std::path::{Path, PathBuf};

/// The process' NUMA nodes, and what the kernel says of others.
#[derive(Clone, Debug)]
pub struct Topology {
    sys: PathBuf,
    /// Nodes that have processors of the process.
    nodes: Vec<usize>,
}

/// What becomes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// None is nearer.
    Near,
    /// One is nearer, and may not reach the same peers.
    Far,
    /// One that reaches the same peers is nearer.
    Dispensable,
}

/// What decides on a port.
#[derive(Clone, Debug)]
pub struct Seat {
    /// In the kernel's units: 10 is the node itself.
    distance: u32,
    reach: Reach,
}

/// Which peers a port reaches.
#[derive(Clone, Debug)]
enum Reach {
    /// InfiniBand: those of its subnet, by the prefix of its GID.
    Subnet([u8; 8]),
    /// RoCE: those of the networks that its rows are on.
    Networks(Rows),
    /// iWARP: not known.
    Unknown,
}

impl Reach {
    fn of(port: &Port) -> Reach {
        match port.gid.0.first_chunk() {
            _ if port.context.is_iwarp() => Reach::Unknown,
            _ if is_ethernet(&port.attr) => Reach::Networks(port.published_rows()),
            subnet => subnet.map_or(Reach::Unknown, |subnet| Reach::Subnet(*subnet)),
        }
    }

    /// Every peer that `other` reaches is among them.
    fn covers(&self, other: &Reach) -> bool {
        match (self, other) {
            (Reach::Subnet(ours), Reach::Subnet(theirs)) => ours == theirs,
            (Reach::Networks(ours), Reach::Networks(theirs)) => ours.cover(theirs),
            _ => false,
        }
    }
}

/// The distance of a node to itself, and of a device that is at no node.
const LOCAL: u32 = 10;

impl Topology {
    /// As the kernel tells it.
    pub fn of_process() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::read(Path::new("/sys"), &status)
    }

    /// From a folder like `/sys` and a text like that of `/proc/self/status`.
    fn read(sys: &Path, status: &str) -> Self {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = ranges(allowed.unwrap_or_default());
        let entries = std::fs::read_dir(sys.join("devices/system/node")).into_iter().flatten().flatten();
        let numbers =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        let is_ours = |node: &usize| {
            let list = std::fs::read_to_string(node_folder(sys, *node).join("cpulist")).unwrap_or_default();
            ranges(&list).iter().any(|of_node| allowed.iter().any(|ours| overlap(*of_node, *ours)))
        };
        Self { sys: sys.to_owned(), nodes: numbers.filter(is_ours).collect() }
    }

    /// From the process to a device.
    fn distance(&self, device: &str) -> u32 {
        let file = self.sys.join("class/infiniband").join(device).join("device/numa_node");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let Ok(node) = text.trim().parse::<usize>() else { return LOCAL };
        self.nodes.iter().map(|ours| self.between(*ours, node)).min().unwrap_or(LOCAL)
    }

    /// From one node to another; a kernel that does not tell leaves "near" and "far".
    fn between(&self, from: usize, to: usize) -> u32 {
        let row = std::fs::read_to_string(node_folder(&self.sys, from).join("distance")).unwrap_or_default();
        let told = row.split_whitespace().nth(to).and_then(|distance| distance.parse().ok());
        told.unwrap_or(if from == to { LOCAL } else { 2 * LOCAL })
    }

    /// What is to become of each port.
    pub fn judge(&self, ports: &[Port]) -> Vec<Verdict> {
        let seat = |port: &Port| Seat {
            distance: if port.soft { LOCAL } else { self.distance(port.context.name()) },
            reach: Reach::of(port),
        };
        judge(&ports.iter().map(seat).collect::<Vec<_>>())
    }
}

fn judge(seats: &[Seat]) -> Vec<Verdict> {
    let verdict = |seat: &Seat| {
        let nearer = || seats.iter().filter(|other| other.distance < seat.distance);
        if nearer().next().is_none() {
            Verdict::Near
        } else if nearer().any(|other| other.reach.covers(&seat.reach)) {
            Verdict::Dispensable
        } else {
            Verdict::Far
        }
    };
    seats.iter().map(verdict).collect()
}

fn node_folder(sys: &Path, node: usize) -> PathBuf {
    sys.join(format!("devices/system/node/node{node}"))
}

/// The kernel's list format: "0-3,8", first and last of each.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.trim().split(',').filter_map(range).collect()
}

fn overlap(one: (u32, u32), other: (u32, u32)) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::roce::{Row, Version};
    use std::net::Ipv4Addr;

    /// A folder like `/sys` of a machine with two nodes of four processors; removed at the end.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("oxib-near-{}-{name}", std::process::id()));
            let machine = Self(root);
            machine.file("devices/system/node/node0/cpulist", "0-1,4-5\n");
            machine.file("devices/system/node/node1/cpulist", "2-3,6-7\n");
            machine.file("devices/system/node/node0/distance", "10 21\n");
            machine.file("devices/system/node/node1/distance", "21 10\n");
            machine.file("devices/system/node/possible", "0-1\n");
            for (device, node) in [("mlx5_0", "0\n"), ("mlx5_1", "1\n"), ("rxe0", "-1\n")] {
                machine.file(&format!("class/infiniband/{device}/device/numa_node"), node);
            }
            machine
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }

        /// Distances of all devices from a process that may use these processors.
        fn distances(&self, allowed: &str) -> [u32; 4] {
            let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nThreads:\t1\n");
            let topology = Topology::read(&self.0, &status);
            ["mlx5_0", "mlx5_1", "rxe0", "siw0"].map(|device| topology.distance(device))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_device_is_as_far_as_the_nearest_node_of_the_process_and_one_at_no_node_is_near() {
        let machine = Machine::new("distances");
        assert_eq!(machine.distances("4"), [10, 21, 10, 10]);
        assert_eq!(machine.distances("2-3"), [21, 10, 10, 10]);
        assert_eq!(machine.distances("0-7"), [10, 10, 10, 10], "not bound");
        assert_eq!(machine.distances("5-6"), [10, 10, 10, 10], "processors of both nodes");
    }

    #[test]
    fn a_kernel_that_tells_nothing_of_nodes_has_near_devices_only() {
        let machine = Machine::new("silent");
        std::fs::remove_dir_all(machine.0.join("devices")).expect("the nodes");
        assert_eq!(machine.distances("2-3"), [10, 10, 10, 10]);
    }

    #[test]
    fn this_machine_has_a_node_for_this_process_if_it_has_nodes_at_all() {
        let has_nodes = Path::new("/sys/devices/system/node/node0/cpulist").exists();
        assert_eq!(!Topology::of_process().nodes.is_empty(), has_nodes);
    }

    fn on_subnet(distance: u32, subnet: u8) -> Seat {
        Seat { distance, reach: Reach::Subnet([subnet; 8]) }
    }

    /// A RoCE port with addresses on these networks of IPv4, 10.N.0.0/24.
    fn on_networks(distance: u32, networks: &[u8]) -> Seat {
        let gid = |net: u8| Ipv4Addr::new(10, net, 0, distance as u8).to_ipv6_mapped().octets();
        let rows = networks.iter().map(|net| Row { gid: gid(*net), prefix: Some(24) }).collect();
        Seat { distance, reach: Reach::Networks(Rows { version: Version::V2, rows }) }
    }

    #[test]
    fn a_far_port_is_dispensable_where_a_nearer_one_is_on_its_subnet() {
        let unknown = |distance| Seat { distance, reach: Reach::Unknown };
        let seats = [on_subnet(10, 1), on_subnet(21, 1), on_subnet(21, 2), unknown(21), unknown(10)];
        let expected = [Verdict::Near, Verdict::Dispensable, Verdict::Far, Verdict::Far, Verdict::Near];
        assert_eq!(judge(&seats), expected);
        assert_eq!(judge(&[on_subnet(21, 1), on_subnet(21, 1)]), [Verdict::Near; 2], "all are equally far");
    }

    #[test]
    fn a_far_roce_port_is_dispensable_where_a_nearer_one_is_on_all_of_its_networks() {
        let near = on_networks(10, &[1, 2]);
        for (far, verdict) in [
            (on_networks(21, &[2]), Verdict::Dispensable),
            (on_networks(21, &[2, 1]), Verdict::Dispensable),
            (on_networks(21, &[1, 3]), Verdict::Far),
            (on_networks(21, &[]), Verdict::Far),
            (on_subnet(21, 1), Verdict::Far),
        ] {
            assert_eq!(judge(&[near.clone(), far.clone()]), [Verdict::Near, verdict], "{far:?}");
        }
    }
}
