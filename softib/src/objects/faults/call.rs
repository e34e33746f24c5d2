//! The control calls that can be made to fail, by name.

/// Declares [`Call`] and the names of its functions.
macro_rules! calls {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A control call that can be made to fail; names are those of libibverbs without `ibv_`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Call { $($variant),* }

        pub(crate) const NAMES: &[(&str, Call)] = &[$(($name, Call::$variant)),*];
    };
}

calls! {
    OpenDevice = "open_device", AllocPd = "alloc_pd", RegMr = "reg_mr", CreateCompChannel = "create_comp_channel",
    CreateCq = "create_cq", ResizeCq = "resize_cq", CreateSrq = "create_srq", CreateQp = "create_qp",
    ModifyQp = "modify_qp", CreateAh = "create_ah",
}

impl Call {
    pub(crate) fn named(name: &str) -> Option<Call> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
    }
}
