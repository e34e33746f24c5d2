//! The calls that can be made to fail, by name.

/// Declares [`Call`] and the names of its functions.
macro_rules! calls {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A call that can be made to fail; names are those of libibverbs without `ibv_`, and those of librdmacm.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Call { $($variant),* }

        pub(crate) const NAMES: &[(&str, Call)] = &[$(($name, Call::$variant)),*];
    };
}

calls! {
    GetDeviceList = "get_device_list", OpenDevice = "open_device", CloseDevice = "close_device",
    QueryDevice = "query_device", QueryPort = "query_port", QueryGid = "query_gid",
    QueryGidEx = "query_gid_ex", QueryPkey = "query_pkey", AllocPd = "alloc_pd", DeallocPd = "dealloc_pd",
    RegMr = "reg_mr", DeregMr = "dereg_mr", CreateCompChannel = "create_comp_channel",
    DestroyCompChannel = "destroy_comp_channel", CreateCq = "create_cq", ResizeCq = "resize_cq",
    ReqNotifyCq = "req_notify_cq", GetCqEvent = "get_cq_event", DestroyCq = "destroy_cq",
    CreateSrq = "create_srq", ModifySrq = "modify_srq", QuerySrq = "query_srq", GetSrqNum = "get_srq_num",
    DestroySrq = "destroy_srq", CreateQp = "create_qp", OpenQp = "open_qp", ModifyQp = "modify_qp",
    QueryQp = "query_qp", DestroyQp = "destroy_qp", CreateAh = "create_ah", DestroyAh = "destroy_ah",
    OpenXrcd = "open_xrcd", CloseXrcd = "close_xrcd", GetAsyncEvent = "get_async_event",
    PostSend = "post_send", PostRecv = "post_recv", PostSrqRecv = "post_srq_recv", PollCq = "poll_cq",
    RdmaCreateEventChannel = "rdma_create_event_channel", RdmaCreateId = "rdma_create_id",
    RdmaDestroyId = "rdma_destroy_id", RdmaBindAddr = "rdma_bind_addr",
    RdmaResolveAddr = "rdma_resolve_addr", RdmaResolveRoute = "rdma_resolve_route",
    RdmaConnect = "rdma_connect", RdmaEstablish = "rdma_establish", RdmaListen = "rdma_listen",
    RdmaAccept = "rdma_accept", RdmaReject = "rdma_reject", RdmaNotify = "rdma_notify",
    RdmaDisconnect = "rdma_disconnect", RdmaGetCmEvent = "rdma_get_cm_event",
    RdmaSetOption = "rdma_set_option", RdmaInitQpAttr = "rdma_init_qp_attr",
}

impl Call {
    /// How many there are.
    pub const COUNT: usize = NAMES.len();

    /// Whether it is a call of the data path. Those can fail on devices that are opened after the plan was put into force.
    pub(crate) fn is_of_data_path(self) -> bool {
        matches!(self, Call::PostSend | Call::PostRecv | Call::PostSrqRecv | Call::PollCq)
    }

    pub(crate) fn named(name: &str) -> Option<Call> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
    }
}
