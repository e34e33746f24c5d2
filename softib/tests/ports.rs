//! Nodes, kinds of ports, partitions: who reaches whom, and what ports say about themselves.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("answers") => answers(),
        Some("roce") => roce(),
        Some("names") => names(),
        Some("limited") => limited(),
        Some("refuses") => refuses(),
        Some("configured") => configured(),
        Some("holds") => holds(),
        Some("apart") => apart(),
        Some("misaddresses") => misaddresses(),
        Some("on another wire") => on_another_wire(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const QKEY: u32 = 77;

fn port_of(dev: &Dev) -> ibv_port_attr {
    let mut attr = ibv_port_attr::default();
    assert_eq!(unsafe { (table().query_port)(dev.ctx, 1, &mut attr) }, 0);
    attr
}

/// rdma-core 56 has appended `active_speed_ex`: its programs hand over more than there is to say.
#[test]
fn a_newer_programs_longer_port_attributes_end_in_zeroes() {
    #[repr(C)]
    struct Longer(ibv_port_attr, [u8; 16]);
    let dev = Dev::open();
    let mut longer = Longer(ibv_port_attr::default(), [0xaa; 16]);
    let context = unsafe { &*verbs_get_ctx(dev.ctx) };
    let len = size_of::<ibv_port_attr>() + 8;
    let attr = &raw mut longer;
    assert_eq!(unsafe { context.query_port.unwrap()(dev.ctx, 1, attr.cast(), len) }, 0);
    assert_eq!((longer.0.state, longer.0.lid), (port_of(&dev).state, port_of(&dev).lid));
    assert_eq!(longer.1[..8], [0; 8]);
    assert_eq!(longer.1[8..], [0xaa; 8]);
}

fn gid_of(dev: &Dev, index: i32) -> [u8; 16] {
    let mut gid = ibv_gid::default();
    assert_eq!(unsafe { (table().query_gid)(dev.ctx, 1, index, &mut gid) }, 0);
    unsafe { gid.raw }
}

fn words(gid: [u8; 16]) -> [u64; 2] {
    [0, 8].map(|at| u64::from_be_bytes(gid[at..at + 8].try_into().unwrap()))
}

fn gid_from(words: &[u64]) -> [u8; 16] {
    let bytes: Vec<u8> = words[..2].iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().unwrap()
}

fn local(dlid: u16) -> ibv_ah_attr {
    ibv_ah_attr { dlid, port_num: 1, ..Default::default() }
}

fn global(dlid: u16, gid: [u8; 16], sgid_index: u8) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, ..local(dlid) };
    (attr.grh.dgid, attr.grh.sgid_index, attr.grh.hop_limit) = (ibv_gid { raw: gid }, sgid_index, 9);
    attr
}

fn handle(dev: &Dev, mut attr: ibv_ah_attr) -> Option<*mut ibv_ah> {
    let ah = unsafe { (table().create_ah)(dev.pd, &mut attr) };
    (!ah.is_null()).then_some(ah)
}

/// Connects with a path of the test's own; what modify_qp to RTR said.
fn connect(qp: &Qp, dest: u32, path: ibv_ah_attr, pkey_index: u16) -> i32 {
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, pkey_index, ..Default::default() };
    attr.qp_access_flags = ALL_ACCESS;
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(qp.modify(&attr, mask), 0);
    attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        path_mtu: IBV_MTU_4096,
        dest_qp_num: dest,
        ..Default::default()
    };
    (attr.max_dest_rd_atomic, attr.min_rnr_timer, attr.ah_attr) = (1, 1, path);
    let address = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let result = qp.modify(&attr, address | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if result == 0 {
        qp.rts(&Path::default());
    }
    result
}

/// Says its numbers, LID and GID; then connects to what it is told, and echoes a datagram and a message.
fn answers() {
    let dev = Dev::open();
    let (rc, ud) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)));
    let buf = dev.buf(4096);
    let (port, gid) = (port_of(&dev), words(gid_of(&dev, 0)));
    ud.ready_ud(QKEY);
    assert_eq!(ud.recv(1, &[buf.sge(0, 1024)]), 0);
    say(&[rc.num().into(), ud.num().into(), port.lid.into(), gid[0], gid[1]]);
    let Some(hello) = listen() else { return };
    assert_eq!(connect(&rc, hello[0] as u32, local(hello[1] as u16), 0), 0);
    assert_eq!(rc.recv(2, &[buf.sge(1024, 1024)]), 0);
    say(&[0]);
    let wc = ud.wait();
    say(&[wc.slid.into(), wc.wc_flags.into(), buf.data[7].into(), wc.sl.into()]);
    let wc = rc.wait();
    say(&[wc.byte_len.into(), wc.status.into()]);
    listen();
}

#[test]
fn processes_of_two_nodes_reach_each_other_by_lid_and_gid() {
    let dev = Dev::open();
    let mut child = Child::start_with("answers", &[("SOFTIB_NODE", "reached")]);
    let theirs = child.hear();
    let (lid, gid) = (theirs[2] as u16, gid_from(&theirs[3..]));
    assert_eq!(port_of(&dev).lid, 1);
    assert!(lid > 1 && gid != gid_of(&dev, 0), "a node has a LID and a GID of its own");
    let (rc, ud, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)), dev.buf(64));
    ud.ready_ud(QKEY);
    assert_eq!(connect(&rc, theirs[0] as u32, local(lid), 0), 0);
    child.tell(&[rc.num().into(), 1]);
    child.hear();

    let mut to = global(lid, gid, 0);
    to.sl = 3;
    let ah = handle(&dev, to).unwrap();
    assert_eq!(ud.datagram(1, &[buf.sge(0, 8)], ah, (theirs[1] as u32, QKEY)), 0);
    // The receiver sees our LID, a route header with its hop limit, and the service level.
    assert_eq!(child.hear(), [1, IBV_WC_GRH.into(), 9, 3]);
    assert_eq!(rc.send(1, &[buf.sge(0, 20)]), 0);
    assert_eq!(rc.wait().status, IBV_WC_SUCCESS);
    assert_eq!(child.hear(), [20, 0]);
    child.finish();
}

/// A process of its own counts what it drops: `cargo test` runs tests as threads of one process.
#[test]
fn an_address_that_does_not_fit_the_node_is_silence() {
    Child::start("misaddresses").finish();
}

fn misaddresses() {
    let dev = Dev::open();
    let mut child = Child::start_with("answers", &[("SOFTIB_NODE", "misaddressed")]);
    let theirs = child.hear();
    let (lid, gid) = (theirs[2] as u16, gid_from(&theirs[3..]));
    let buf = dev.buf(64);
    let rc = dev.qp(IBV_QPT_RC, dev.cq(64));
    // Our own node's LID, with the number of a queue pair of the other node.
    assert_eq!(connect(&rc, theirs[0] as u32, local(1), 0), 0);
    assert_eq!(rc.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(rc.wait().status, IBV_WC_RETRY_EXC_ERR);

    let ud = dev.qp(IBV_QPT_UD, dev.cq(64));
    ud.ready_ud(QKEY);
    let mut elsewhere = gid;
    elsewhere[15] ^= 1;
    let wrong = [local(1), local(lid ^ 0x55), local(0), global(lid, elsewhere, 0), global(1, gid, 0)];
    let before = softib::stats().ud_dropped;
    for attr in wrong {
        let ah = handle(&dev, attr).unwrap();
        assert_eq!(ud.datagram(1, &[buf.sge(0, 8)], ah, (theirs[1] as u32, QKEY)), 0);
        assert_eq!(ud.wait().status, IBV_WC_SUCCESS);
    }
    assert_eq!(softib::stats().ud_dropped - before, wrong.len() as u64);
    child.finish();
}

/// Says its LID; ends when told.
fn names() {
    let dev = Dev::open();
    say(&[port_of(&dev).lid.into(), words(gid_of(&dev, 0))[1]]);
    listen();
}

#[test]
fn a_node_is_one_host_for_all_its_processes() {
    let start = |name| Child::start_with("names", &[("SOFTIB_NODE", name)]);
    let mut children = ["one", "one", "two", "one", "two", "three"].map(start);
    let said: Vec<Vec<u64>> = children.iter_mut().map(Child::hear).collect();
    assert_eq!((&said[0], &said[2]), (&said[1], &said[4]));
    assert_eq!(said[0], said[3]);
    let mut lids = [said[0][0], said[2][0], said[5][0], 1];
    lids.sort_unstable();
    assert!(lids.windows(2).all(|pair| pair[0] != pair[1]), "{lids:?}");
    children.into_iter().for_each(Child::finish);
}

#[test]
fn the_registry_goes_with_the_last_process_even_a_killed_one() {
    let dir = std::path::Path::new("/dev/shm").join(format!("softib-nodes-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let folder = dir.to_str().unwrap().to_owned();
    let start = |name| Child::start_with("names", &[("SOFTIB_NODE", name), ("SOFTIB_DIR", &folder)]);
    let (mut one, mut two) = (start("one"), start("two"));
    let lid = one.hear()[0];
    two.hear();
    one.kill();
    // A dead node's name is still known while another process is there.
    let mut again = start("one");
    assert_eq!(again.hear()[0], lid);
    again.kill();
    two.kill();
    let mut last = start("three");
    last.hear();
    last.finish();
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir(&dir).unwrap();
}

/// A RoCE port and what it asks for; with itself.
fn roce() {
    let dev = Dev::open();
    let port = port_of(&dev);
    assert_eq!((port.link_layer, port.lid, port.flags), (IBV_LINK_LAYER_ETHERNET, 0, IBV_QPF_GRH_REQUIRED));
    assert_eq!(port.gid_tbl_len, 16);
    assert_eq!(gid_of(&dev, 6), [0; 16], "a row that is empty");
    let kinds: Vec<_> = (0..7).map(|row| softib::port::gid_type(0, 1, row)).collect();
    let (v1, v2) = (Some(IBV_GID_TYPE_ROCE_V1), Some(IBV_GID_TYPE_ROCE_V2));
    assert_eq!(kinds, [v1, v2, v1, v2, v1, v2, None]);
    assert_eq!(gid_of(&dev, 3)[10..14], [0xff, 0xff, 127, 0]);
    assert_eq!(gid_of(&dev, 4)[..2], [0xfd, 0]);

    assert!(handle(&dev, local(1)).is_none(), "no LIDs on Ethernet");
    assert_eq!(last_errno(), libc::EINVAL);
    assert!(handle(&dev, global(0, gid_of(&dev, 0), 6)).is_none(), "no such row");
    let (a, b, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_RC, dev.cq(64)), dev.buf(1024));
    assert_eq!(connect(&a, b.num(), local(0), 0), libc::EINVAL);
    let a = dev.qp(IBV_QPT_RC, dev.cq(64));
    assert_eq!(connect(&a, b.num(), global(0, gid_of(&dev, 1), 1), 0), 0);
    assert_eq!(connect(&b, a.num(), global(0, gid_of(&dev, 3), 3), 0), 0);
    assert_eq!(b.recv(1, &[buf.sge(0, 64)]), 0);
    assert_eq!(a.send(1, &[buf.sge(64, 8)]), 0);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));

    let (c, d) = (dev.qp(IBV_QPT_UD, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)));
    c.ready_ud(QKEY);
    d.ready_ud(QKEY);
    assert_eq!(d.recv(1, &[buf.sge(512, 512)]), 0);
    let ah = handle(&dev, global(0, gid_of(&dev, 3), 3)).unwrap();
    assert_eq!(c.datagram(1, &[buf.sge(0, 8)], ah, (d.num(), QKEY)), 0);
    let wc = d.wait();
    assert_eq!((wc.slid, wc.wc_flags, wc.byte_len), (0, IBV_WC_GRH, 48));
    // RoCE v2 over IPv4: version 4, five words, UDP, from and to the port's loopback address.
    let ip = &buf.data[512 + 20..512 + 40];
    assert_eq!((ip[0], ip[8], ip[9]), (0x45, 9, 17));
    assert_eq!((&ip[12..16], &ip[16..20]), (&gid_of(&dev, 3)[12..], &gid_of(&dev, 3)[12..]));
    say(&[1]);
    listen();
}

#[test]
fn a_roce_port_has_gids_of_both_versions_and_wants_routes() {
    let env = [("SOFTIB_LINK_LAYER", "ethernet"), ("SOFTIB_GIDS", "fd00::5")];
    let mut child = Child::start_with("roce", &env);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

#[test]
fn a_roce_port_and_an_infiniband_port_are_not_on_one_wire() {
    Child::start("on another wire").finish();
}

fn on_another_wire() {
    let dev = Dev::open();
    let mut child = Child::start_with("limited", &[("SOFTIB_LINK_LAYER", "ethernet")]);
    let theirs = child.hear();
    let (ud, buf) = (dev.qp(IBV_QPT_UD, dev.cq(64)), dev.buf(64));
    ud.ready_ud(QKEY);
    // Both are on the default node, so they have the same GID.
    let ah = handle(&dev, global(0, gid_of(&dev, 0), 0)).unwrap();
    let before = softib::stats().ud_dropped;
    assert_eq!(ud.datagram(1, &[buf.sge(0, 8)], ah, (theirs[1] as u32, QKEY)), 0);
    assert_eq!(softib::stats().ud_dropped - before, 1);
    child.finish();
}

/// A UD and an RC queue pair with the P_Key in row `told[0]`, the latter connected to `told[1]`; then says what the port has refused.
fn limited() {
    let dev = Dev::open();
    let (rc, ud, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)), dev.buf(1024));
    ud.ready_ud(QKEY);
    assert_eq!(ud.recv(1, &[buf.sge(0, 512)]), 0);
    say(&[rc.num().into(), ud.num().into(), port_of(&dev).pkey_tbl_len.into()]);
    let Some(told) = listen() else { return };
    assert_eq!(connect(&rc, told[1] as u32, local(1), told[0] as u16), 0);
    assert_eq!(rc.recv(1, &[buf.sge(512, 512)]), 0);
    say(&[0]);
    listen();
    say(&[port_of(&dev).bad_pkey_cntr.into(), port_of(&dev).qkey_viol_cntr.into()]);
    listen();
}

/// The child's partition 1 (full) and partition 2 (limited) against our full default one.
fn against(pkey_index: u64, pkeys: &str) -> (u32, Vec<u64>) {
    let dev = Dev::open();
    let mut child = Child::start_with("limited", &[("SOFTIB_PKEYS", pkeys)]);
    let theirs = child.hear();
    assert_eq!(theirs[2], pkeys.split(',').count() as u64);
    let (rc, ud, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(64)), dev.buf(64));
    ud.ready_ud(QKEY);
    assert_eq!(connect(&rc, theirs[0] as u32, local(1), 0), 0);
    child.tell(&[pkey_index, rc.num().into()]);
    child.hear();
    // Row 0 of the child's table is what its UD queue pair has; the Q_Key is wrong.
    let ah = dev.ah();
    assert_eq!(ud.datagram(1, &[buf.sge(0, 8)], ah, (theirs[1] as u32, QKEY + 1)), 0);
    assert_eq!(rc.send(1, &[buf.sge(0, 8)]), 0);
    let status = rc.wait().status;
    child.tell(&[0]);
    let refused = child.hear();
    child.finish();
    (status, refused)
}

#[test]
fn partitions_are_kept_apart_and_ports_count_what_they_refuse() {
    let (status, refused) = against(1, "0xffff,0x8001");
    assert_eq!(status, IBV_WC_RETRY_EXC_ERR);
    assert!(refused[0] > 0 && refused[1] == 1, "{refused:?}");
    // A limited member of our partition reaches us, who are full members.
    let (status, refused) = against(1, "0x8001,0x7fff");
    assert_eq!(status, IBV_WC_SUCCESS);
    // The datagram met partition 1 before its Q_Key was looked at.
    assert_eq!(refused, [1, 0]);
}

#[test]
fn a_p_key_that_the_table_has_not_is_refused() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(8));
    let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, pkey_index: 1, ..Default::default() };
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(qp.modify(&attr, mask), libc::EINVAL);
    let mut key = 0;
    assert_eq!(unsafe { (table().query_pkey)(dev.ctx, 1, 1, &mut key) }, -1);
}

/// Opening fails with EINVAL.
fn refuses() {
    unsafe {
        let list = (table().get_device_list)(std::ptr::null_mut());
        assert!((table().open_device)(*list).is_null());
        assert_eq!(last_errno(), libc::EINVAL);
    }
    say(&[1]);
    listen();
}

#[test]
fn a_setting_that_makes_no_sense_keeps_the_device_shut() {
    for (name, value) in
        [("SOFTIB_PKEYS", "0x8000"), ("SOFTIB_LINK_LAYER", "token-ring"), ("SOFTIB_GIDS", "here")]
    {
        let mut child = Child::start_with("refuses", &[(name, value)]);
        assert_eq!(child.hear(), [1]);
        child.finish();
    }
}

/// A path may change in SQD; what has been sent and received before is still counted.
#[test]
fn a_path_that_changes_in_sqd_keeps_its_connection() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path::default());
    let buf = dev.buf(1024);
    let exchange = || {
        assert_eq!(b.recv(1, &[buf.sge(0, 64)]), 0);
        assert_eq!(a.send(1, &[buf.sge(64, 8)]), 0);
        (a.wait().status, b.wait().status)
    };
    assert_eq!(exchange(), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(a.to_state(IBV_QPS_SQD), 0);
    let attr =
        ibv_qp_attr { qp_state: IBV_QPS_SQD, ah_attr: global(1, gid_of(&dev, 0), 0), ..Default::default() };
    assert_eq!(a.modify(&attr, IBV_QP_STATE | IBV_QP_AV), 0);
    assert_eq!(a.to_state(IBV_QPS_RTS), 0);
    assert_eq!(exchange(), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
}

/// A program chooses for itself, while the device is closed.
fn configured() {
    use softib::port::{LinkLayer, Settings, configure};
    let node = Some("chosen".to_owned());
    let settings = Settings { node, pkeys: vec![0xffff, 0x8007], ..Settings::default() };
    configure(settings.clone()).unwrap();
    let dev = Dev::open();
    let port = port_of(&dev);
    assert!(port.lid > 1 && port.pkey_tbl_len == 2);
    let ethernet = Settings { link_layers: vec![LinkLayer::Ethernet], ..settings };
    assert!(configure(ethernet.clone()).is_err(), "not while the device is open");
    unsafe {
        assert_eq!((table().dealloc_pd)(dev.pd), 0);
        assert_eq!((table().close_device)(dev.ctx), 0);
    }
    configure(ethernet).unwrap();
    assert_eq!(port_of(&Dev::open()).link_layer, IBV_LINK_LAYER_ETHERNET);
    say(&[1]);
    listen();
}

#[test]
fn a_program_chooses_its_node_and_port() {
    let mut child = Child::start_with("configured", &[("SOFTIB_NODE", "environment")]);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

/// Memory that its peer writes to.
fn holds() {
    let dev = Dev::open();
    let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(8)), dev.buf(1 << 16));
    say(&[qp.num().into(), port_of(&dev).lid.into(), buf.addr(), buf.key().into()]);
    let hello = listen().unwrap();
    assert_eq!(connect(&qp, hello[0] as u32, local(hello[1] as u16), 0), 0);
    say(&[0]);
    listen();
    say(&[buf.data[100].into()]);
    listen();
}

/// Writes to a process on `node`; how many operations went each way, directly and through the rings.
fn write_to(dev: &Dev, node: &str) -> (u64, u64) {
    let mut child = Child::start_with("holds", &[("SOFTIB_NODE", node)]);
    let theirs = child.hear();
    let (qp, mut buf) = (dev.qp(IBV_QPT_RC, dev.cq(8)), dev.buf(1 << 16));
    assert_eq!(connect(&qp, theirs[0] as u32, local(theirs[1] as u16), 0), 0);
    child.tell(&[qp.num().into(), port_of(dev).lid.into()]);
    child.hear();
    buf.data.fill(0x5a);
    let before = softib::stats();
    assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 1 << 16), theirs[2], theirs[3] as u32), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    child.tell(&[0]);
    assert_eq!(child.hear(), [0x5a]);
    child.finish();
    let now = softib::stats();
    (now.rdma_direct - before.rdma_direct, now.rdma_ring - before.rdma_ring)
}

fn apart() {
    let dev = Dev::open();
    let here = write_to(&dev, "here");
    assert!(here == (1, 0) || here.0 == 0, "{here:?}");
    let there = write_to(&dev, "there");
    assert!(there.0 == 0 && there.1 > 0, "{there:?}");
    say(&[1]);
    listen();
}

#[test]
fn process_vm_can_be_kept_within_a_node() {
    let mut child = Child::start_with("apart", &[("SOFTIB_NODE", "here"), ("SOFTIB_CMA", "node")]);
    assert_eq!(child.hear(), [1]);
    child.finish();
}
