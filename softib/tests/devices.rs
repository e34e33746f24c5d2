//! Several devices with several ports: what each says of itself, who reaches whom, and what must not be mixed.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::collections::HashSet;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Once;

const DEVICES: usize = 2;
const PORTS: u8 = 3;
const QKEY: u32 = 7;

/// The devices of this test process; port 3 of the second is on the other wire.
fn devices() -> Vec<Dev> {
    use softib::port::{LinkLayer, Settings, configure};
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut link_layers = vec![LinkLayer::InfiniBand; 6];
        link_layers[5] = LinkLayer::Ethernet;
        let (devices, ports) = (DEVICES, PORTS.into());
        configure(Settings { devices, ports, link_layers, ..Settings::default() }).unwrap();
    });
    open_all()
}

fn open_all() -> Vec<Dev> {
    let mut count = 0;
    unsafe {
        let list = (table().get_device_list)(&mut count);
        let open = |at: usize| {
            let ctx = (table().open_device)(*list.add(at));
            assert!(!ctx.is_null(), "errno {}", last_errno());
            Dev { ctx, pd: (table().alloc_pd)(ctx) }
        };
        assert!((*list.add(count as usize)).is_null(), "the list ends with null");
        let all = (0..count as usize).map(open).collect();
        (table().free_device_list)(list);
        all
    }
}

fn port_of(dev: &Dev, num: u8) -> Option<ibv_port_attr> {
    let mut attr = ibv_port_attr::default();
    (unsafe { (table().query_port)(dev.ctx, num, &mut attr) } == 0).then_some(attr)
}

fn gid_of(dev: &Dev, num: u8) -> Option<[u8; 16]> {
    let mut gid = ibv_gid::default();
    (unsafe { (table().query_gid)(dev.ctx, num, 0, &mut gid) } == 0).then_some(unsafe { gid.raw })
}

fn guid_of(dev: &Dev) -> u64 {
    unsafe { (table().get_device_guid)((*dev.ctx).device) }
}

/// The way to a port by its LID, from port `num`.
fn lid(dlid: u16, num: u8) -> ibv_ah_attr {
    ibv_ah_attr { dlid, port_num: num, ..Default::default() }
}

fn init(qp: &Qp, port_num: u8) -> i32 {
    let attr =
        ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, qp_access_flags: ALL_ACCESS, ..Default::default() };
    qp.modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
}

fn to_rtr(qp: &Qp, dest_qp_num: u32, ah_attr: ibv_ah_attr) -> i32 {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: IBV_MTU_4096,
        dest_qp_num,
        ah_attr,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ..Default::default()
    };
    let address = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    qp.modify(&attr, address | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
}

/// Quick to give up: 4.096 us * 2^8 once.
fn to_rts(qp: &Qp) {
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, timeout: 8, max_rd_atomic: 1, ..Default::default() };
    let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(qp.modify(&attr, IBV_QP_STATE | IBV_QP_SQ_PSN | retry), 0);
}

/// Connects two queue pairs, each bound to a port, with paths to the LIDs `to`.
fn connect(qps: [&Qp; 2], ports: [u8; 2], to: [u16; 2]) {
    for (qp, port) in qps.into_iter().zip(ports) {
        assert_eq!(init(qp, port), 0);
    }
    assert_eq!(to_rtr(qps[0], qps[1].num(), lid(to[0], ports[0])), 0);
    assert_eq!(to_rtr(qps[1], qps[0].num(), lid(to[1], ports[1])), 0);
    qps.into_iter().for_each(to_rts);
}

/// Status of a message from one to the other.
fn exchange(from: (&Dev, &Qp), to: (&Dev, &Qp)) -> u32 {
    let (mut out, into) = (from.0.buf(64), to.0.buf(64));
    out.data[..5].copy_from_slice(b"hello");
    assert_eq!(to.1.recv(2, &[into.sge(0, 64)]), 0);
    assert_eq!(from.1.send(1, &[out.sge(0, 5)]), 0);
    let status = from.1.wait().status;
    if status == IBV_WC_SUCCESS {
        assert_eq!(to.1.wait().byte_len, 5);
        assert_eq!(&into.data[..5], b"hello");
    }
    status
}

#[test]
fn child_main() {
    match role().as_deref() {
        Some("environment") => environment(),
        Some("echo") => echo(),
        Some("one port") => one_port(),
        Some("down") => down(),
        Some("second down") => second_down(),
        other => assert_eq!(other, None, "no such role"),
    }
}

#[test]
fn each_port_has_addresses_of_its_own() {
    let all = devices();
    assert_eq!(all.len(), DEVICES);
    let (mut lids, mut gids) = (HashSet::new(), HashSet::new());
    for (number, dev) in all.iter().enumerate() {
        let name = unsafe { CStr::from_ptr((table().get_device_name)((*dev.ctx).device)) };
        assert_eq!(name.to_str().unwrap(), format!("softib{number}"));
        let mut attr = ibv_device_attr::default();
        assert_eq!(unsafe { (table().query_device)(dev.ctx, &mut attr) }, 0);
        assert_eq!((attr.phys_port_cnt, attr.node_guid), (PORTS, guid_of(dev)));
        for num in 1..=PORTS {
            let port = port_of(dev, num).unwrap();
            assert_eq!(port.state, IBV_PORT_ACTIVE);
            assert!(port.lid == 0 || lids.insert(port.lid), "a LID twice");
            assert!(gids.insert(gid_of(dev, num).unwrap()), "a GID twice");
            let mut key = 0;
            assert_eq!(unsafe { (table().query_pkey)(dev.ctx, num, 0, &mut key) }, 0);
            assert_eq!(key, 0xffff);
        }
        assert!(port_of(dev, 0).is_none() && port_of(dev, PORTS + 1).is_none());
        assert!(gid_of(dev, PORTS + 1).is_none());
    }
    assert_ne!(guid_of(&all[0]), guid_of(&all[1]));
    assert_eq!((lids.len(), port_of(&all[0], 1).unwrap().lid), (5, 1));
    let ethernet = port_of(&all[1], 3).unwrap();
    assert_eq!((ethernet.link_layer, ethernet.lid), (IBV_LINK_LAYER_ETHERNET, 0));
}

/// Any pair of ports of one wire, of one device or of two.
#[test]
fn every_port_reaches_every_other_and_itself() {
    let all = devices();
    let ports: Vec<(&Dev, u8)> =
        all.iter().flat_map(|dev| (1..=PORTS).map(move |num| (dev, num))).take(5).collect();
    let cqs: Vec<_> = all.iter().map(|dev| dev.cq(64)).collect();
    let cq = |dev: &Dev| cqs[usize::from(!std::ptr::eq(dev, &raw const all[0]))];
    for &(a, from) in &ports {
        for &(b, to) in &ports {
            let lids = [port_of(b, to).unwrap().lid, port_of(a, from).unwrap().lid];
            let (one, two) = (a.qp(IBV_QPT_RC, cq(a)), b.qp(IBV_QPT_RC, cq(b)));
            connect([&one, &two], [from, to], lids);
            assert_eq!(exchange((a, &one), (b, &two)), IBV_WC_SUCCESS, "{from} -> {to}");
            assert_eq!(exchange((b, &two), (a, &one)), IBV_WC_SUCCESS, "{to} -> {from}");
        }
    }
}

/// The address leads to a port of the right process, and not to the one that the queue pair is bound to.
#[test]
fn a_message_to_another_port_than_the_peers_gets_no_answer() {
    let all = devices();
    let (dev, cq) = (&all[0], all[0].cq(64));
    let lids: Vec<u16> = (1..=PORTS).map(|num| port_of(dev, num).unwrap().lid).collect();
    // The peer is bound to port 2; our path leads to port 3.
    let (one, two) = (dev.qp(IBV_QPT_RC, cq), dev.qp(IBV_QPT_RC, cq));
    connect([&one, &two], [1, 2], [lids[2], lids[0]]);
    assert_eq!(exchange((dev, &one), (dev, &two)), IBV_WC_RETRY_EXC_ERR);
    // Its answers would go to port 3, where no queue pair waits for them.
    let (one, two) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_RC, dev.cq(64)));
    connect([&one, &two], [1, 2], [lids[1], lids[2]]);
    assert_eq!(exchange((dev, &one), (dev, &two)), IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_queue_pair_is_bound_to_a_port_that_its_device_has() {
    let all = devices();
    let qp = all[0].qp(IBV_QPT_RC, all[0].cq(8));
    assert_eq!(init(&qp, PORTS + 1), libc::EINVAL);
    assert_eq!(init(&qp, 0), libc::EINVAL);
    assert_eq!(init(&qp, 2), 0);
    assert_eq!(to_rtr(&qp, qp.num(), lid(1, 3)), libc::EINVAL, "the path starts at another port");
    let own = port_of(&all[0], 2).unwrap().lid;
    assert_eq!(to_rtr(&qp, qp.num(), lid(own, 2)), 0);
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    assert_eq!(unsafe { (table().query_qp)(qp.qp, &mut attr, -1, &mut init) }, 0);
    assert_eq!((attr.port_num, attr.ah_attr.port_num), (2, 2));
}

#[test]
fn ports_of_two_wires_do_not_reach_each_other() {
    let dev = &devices()[1];
    let mut path = lid(0, 2);
    (path.is_global, path.dlid) = (1, port_of(dev, 2).unwrap().lid);
    path.grh.dgid = ibv_gid { raw: gid_of(dev, 3).unwrap() };
    let (ib, roce) = (dev.qp(IBV_QPT_RC, dev.cq(8)), dev.qp(IBV_QPT_RC, dev.cq(8)));
    assert_eq!((init(&ib, 2), init(&roce, 3)), (0, 0));
    assert_eq!(to_rtr(&ib, roce.num(), path), 0);
    (path.port_num, path.dlid) = (3, 0);
    path.grh.dgid = ibv_gid { raw: gid_of(dev, 2).unwrap() };
    assert_eq!(to_rtr(&roce, ib.num(), path), 0);
    [&ib, &roce].into_iter().for_each(to_rts);
    assert_eq!(exchange((dev, &ib), (dev, &roce)), IBV_WC_RETRY_EXC_ERR);
}

fn ud(dev: &Dev, port_num: u8) -> Qp {
    let qp = dev.qp(IBV_QPT_UD, dev.cq(64));
    let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, qkey: QKEY, ..Default::default() };
    assert_eq!(qp.modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    for (qp_state, mask) in [(IBV_QPS_RTR, 0), (IBV_QPS_RTS, IBV_QP_SQ_PSN)] {
        assert_eq!(qp.modify(&ibv_qp_attr { qp_state, ..Default::default() }, IBV_QP_STATE | mask), 0);
    }
    qp
}

fn handle(dev: &Dev, mut path: ibv_ah_attr) -> *mut ibv_ah {
    unsafe { (table().create_ah)(dev.pd, &mut path) }
}

#[test]
fn a_datagram_leaves_at_its_queue_pairs_port_and_says_so() {
    let all = devices();
    let (from, to) = (ud(&all[0], 2), ud(&all[1], 1));
    let (own, there) = (port_of(&all[0], 2).unwrap().lid, port_of(&all[1], 1).unwrap().lid);
    let (out, into) = (all[0].buf(64), all[1].buf(128));
    assert_eq!(to.recv(2, &[into.sge(0, 128)]), 0);
    let send = |ah| {
        assert_eq!(from.datagram(1, &[out.sge(0, 8)], ah, (to.num(), QKEY)), 0);
        from.wait().status
    };
    assert_eq!(send(handle(&all[0], lid(there, 2))), IBV_WC_SUCCESS);
    assert_eq!(to.wait().slid, own);
    assert!(handle(&all[0], lid(there, PORTS + 1)).is_null());
    // Another port of the right process: no queue pair there has this number.
    assert_eq!(send(handle(&all[0], lid(own, 2))), IBV_WC_SUCCESS);
    // A handle of another port, and of another device.
    assert_eq!(send(handle(&all[0], lid(there, 1))), IBV_WC_LOC_QP_OP_ERR);
}

#[test]
fn objects_of_two_devices_do_not_mix() {
    let all = devices();
    let (cqs, srq) = ([all[0].cq(8), all[1].cq(8)], all[1].srq(8));
    let create = |send_cq, recv_cq, srq| {
        let mut init = ibv_qp_init_attr { send_cq, recv_cq, srq, qp_type: IBV_QPT_RC, ..Default::default() };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
        let qp = unsafe { (table().create_qp)(all[0].pd, &mut init) };
        if qp.is_null() { Err(last_errno()) } else { Ok(unsafe { (table().destroy_qp)(qp) }) }
    };
    assert_eq!(create(cqs[0], cqs[0], null_mut()), Ok(0));
    assert_eq!(create(cqs[1], cqs[0], null_mut()), Err(libc::EINVAL));
    assert_eq!(create(cqs[0], cqs[1], null_mut()), Err(libc::EINVAL));
    assert_eq!(create(cqs[0], cqs[0], srq), Err(libc::EINVAL));
    unsafe {
        let channel = (table().create_comp_channel)(all[1].ctx);
        let cq = (table().create_cq)(all[0].ctx, 8, null_mut(), channel, 0);
        assert_eq!((cq.is_null(), last_errno()), (true, libc::EINVAL));
        assert_eq!((table().destroy_comp_channel)(channel), 0);
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut domain = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        let xrcd = ibv_open_xrcd(all[1].ctx, &mut domain);
        assert!(!xrcd.is_null());
        let comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let (srq_type, pd, cq) = (IBV_SRQT_XRC, all[0].pd, cqs[0]);
        let mut init = ibv_srq_init_attr_ex { comp_mask, srq_type, pd, xrcd, cq, ..Default::default() };
        (init.attr.max_wr, init.attr.max_sge) = (1, 1);
        let srq = ibv_create_srq_ex(table(), all[0].ctx, &mut init);
        assert_eq!((srq.is_null(), last_errno()), (true, libc::EINVAL));
        assert_eq!(ibv_close_xrcd(xrcd), 0);
    }
}

/// One file names another domain on each device.
#[test]
fn an_xrc_domain_is_one_devices() {
    let all = devices();
    let path = std::env::temp_dir().join(format!("softib-devices-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let open = |dev: &Dev, oflags| {
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        unsafe { ibv_open_xrcd(dev.ctx, &mut ibv_xrcd_init_attr { comp_mask, fd, oflags }) }
    };
    let first = open(&all[0], libc::O_CREAT);
    assert!(!first.is_null());
    assert!(open(&all[1], 0).is_null(), "the second device has no such domain yet");
    let second = open(&all[1], libc::O_CREAT | libc::O_EXCL);
    assert!(!second.is_null());
    for domain in [first, second] {
        assert_eq!(unsafe { ibv_close_xrcd(domain) }, 0);
    }
}

/// Two devices of two ports by the environment, seen from another process.
fn environment() {
    let all = open_all();
    let lids = all.iter().flat_map(|dev| [1, 2].map(|num| u64::from(port_of(dev, num).unwrap().lid)));
    say(&lids.collect::<Vec<_>>());
    listen();
}

#[test]
fn the_environment_says_how_many_and_nodes_do_not_share_a_lid() {
    let hear = |node: &str| {
        let variables = [("SOFTIB_DEVICES", "2"), ("SOFTIB_PORTS", "2"), ("SOFTIB_NODE", node)];
        let mut child = Child::start_with("environment", &variables);
        let lids = child.hear();
        child.finish();
        lids
    };
    let (first, second) = (hear("x"), hear("y"));
    assert_eq!((first.len(), second.len()), (4, 4));
    let lids: HashSet<u64> = first.into_iter().chain(second).collect();
    assert_eq!(lids.len(), 8, "{lids:?}");
}

/// Says its number and the LID of the second device's second port, and answers there.
fn echo() {
    let dev = open_all().remove(1);
    let qp = dev.qp(IBV_QPT_RC, dev.cq(8));
    say(&[qp.num().into(), port_of(&dev, 2).unwrap().lid.into()]);
    let Some(hello) = listen() else { return };
    assert_eq!(init(&qp, 2), 0);
    assert_eq!(to_rtr(&qp, hello[0] as u32, lid(hello[1] as u16, 2)), 0);
    to_rts(&qp);
    let buf = dev.buf(64);
    assert_eq!(qp.recv(1, &[buf.sge(0, 64)]), 0);
    say(&[0]);
    say(&[qp.wait().byte_len.into()]);
    assert_eq!(qp.send(2, &[buf.sge(0, 3)]), 0);
    say(&[qp.wait().status.into()]);
    listen();
}

#[test]
fn two_processes_talk_over_a_second_devices_second_port() {
    let all = devices();
    let (dev, own) = (&all[0], port_of(&all[0], 3).unwrap().lid);
    let mut child = Child::start_with("echo", &[("SOFTIB_DEVICES", "2"), ("SOFTIB_PORTS", "2")]);
    let theirs = child.hear();
    let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(8)), dev.buf(64));
    assert_eq!(init(&qp, 3), 0);
    assert_eq!(to_rtr(&qp, theirs[0] as u32, lid(theirs[1] as u16, 3)), 0);
    to_rts(&qp);
    child.tell(&[qp.num().into(), own.into()]);
    child.hear();
    assert_eq!(qp.recv(1, &[buf.sge(0, 64)]), 0);
    assert_eq!(qp.send(2, &[buf.sge(0, 9)]), 0);
    let mut seen: Vec<u32> = (0..2).map(|_| qp.wait().status).collect();
    seen.dedup();
    assert_eq!(seen, [IBV_WC_SUCCESS]);
    assert_eq!((child.hear(), child.hear()), (vec![9], vec![0]));
    child.finish();
}

/// Has one device with one port; a path to the second port's LID of its node leads to no port.
fn one_port() {
    let dev = open_all().remove(0);
    let qp = dev.qp(IBV_QPT_RC, dev.cq(8));
    assert_eq!(init(&qp, 1), 0);
    say(&[qp.num().into()]);
    listen();
}

#[test]
fn a_port_that_the_peer_does_not_have_answers_nothing() {
    let all = devices();
    let dev = &all[0];
    let mut child = Child::start("one port");
    let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(8)), dev.buf(64));
    assert_eq!(init(&qp, 1), 0);
    let second = port_of(dev, 2).unwrap().lid;
    assert_eq!(to_rtr(&qp, child.hear()[0] as u32, lid(second, 1)), 0);
    to_rts(&qp);
    assert_eq!(qp.send(2, &[buf.sge(0, 9)]), 0);
    assert_eq!(qp.wait().status, IBV_WC_RETRY_EXC_ERR);
    child.finish();
}

/// All ports go down and come up; each of them says so to each device's program.
fn down() {
    let all = open_all();
    softib::faults::set_port(false).unwrap();
    let mut said = Vec::new();
    for dev in &all {
        for _ in 0..2 {
            let mut event = unsafe { std::mem::zeroed() };
            assert_eq!(unsafe { (table().get_async_event)(dev.ctx, &mut event) }, 0);
            assert_eq!(event.event_type, IBV_EVENT_PORT_ERR);
            said.push(unsafe { event.element.port_num } as u64);
        }
        assert_eq!(port_of(dev, 2).unwrap().state, IBV_PORT_DOWN);
    }
    say(&said);
    listen();
}

#[test]
fn a_port_event_names_its_port() {
    let mut child = Child::start_with("down", &[("SOFTIB_DEVICES", "2"), ("SOFTIB_PORTS", "2")]);
    assert_eq!(child.hear(), [1, 2, 1, 2]);
    child.finish();
}

/// The second port of each device goes down: it says so, and what is bound to the first goes on.
fn second_down() {
    let all = open_all();
    let lids: Vec<u16> = (1..=2).map(|num| port_of(&all[0], num).unwrap().lid).collect();
    let pair = || [all[0].qp(IBV_QPT_RC, all[0].cq(8)), all[0].qp(IBV_QPT_RC, all[0].cq(8))];
    let (first, second, buf) = (pair(), pair(), all[0].buf(64));
    connect(first.each_ref(), [1, 1], [lids[0], lids[0]]);
    connect(second.each_ref(), [2, 2], [lids[1], lids[1]]);
    softib::faults::set_ports(Some(2), false).unwrap();
    for dev in &all {
        let mut event = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { (table().get_async_event)(dev.ctx, &mut event) }, 0);
        assert_eq!((event.event_type, unsafe { event.element.port_num }), (IBV_EVENT_PORT_ERR, 2));
        let states = [1, 2].map(|num| port_of(dev, num).unwrap().state);
        assert_eq!(states, [IBV_PORT_ACTIVE, IBV_PORT_DOWN]);
    }
    let sends = |[a, b]: &[Qp; 2]| {
        assert_eq!((b.recv(1, &[buf.sge(0, 8)]), a.send(2, &[buf.sge(8, 8)])), (0, 0));
        u64::from(a.wait().status)
    };
    say(&[sends(&first), sends(&second)]);
    listen();
}

#[test]
fn one_port_of_a_device_can_go_down_alone() {
    let mut child = Child::start_with("second down", &[("SOFTIB_DEVICES", "2"), ("SOFTIB_PORTS", "2")]);
    assert_eq!(child.hear(), [u64::from(IBV_WC_SUCCESS), u64::from(IBV_WC_RETRY_EXC_ERR)]);
    child.finish();
}
