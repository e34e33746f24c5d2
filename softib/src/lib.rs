pub fn driver_table() -> &'static rdma_sys::Table { todo!() } pub fn segment_dir() -> String { todo!() }
