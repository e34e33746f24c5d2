//! What few programs ask for.
//!
//! ```text
//! window    memory windows                        binding  binds of them, checked
//! dm        device memory                         domain   thread domains, parent domains
//! import    objects once more                     command  the descriptors that name contexts for that
//! rereg     memory regions that change            sharing  memory that peers map
//! multicast queue pairs that listen to groups
//! ```

/// The checks of a bind.
pub mod binding;
/// What `cmd_fd` refers to.
pub mod command;
/// `ibv_alloc_dm`, `ibv_free_dm`, `ibv_reg_dm_mr`, and imports of them.
pub mod dm;
/// `ibv_alloc_td`, `ibv_alloc_parent_domain`, and their ends.
pub mod domain;
/// `ibv_import_device`, `ibv_import_pd`, `ibv_import_mr`.
pub mod import;
/// `ibv_attach_mcast`, `ibv_detach_mcast`.
pub mod multicast;
/// `ibv_rereg_mr`.
pub mod rereg;
/// `oxib_share_memory`, `oxib_unshare_memory`.
pub mod sharing;
/// `ibv_alloc_mw`, `ibv_bind_mw`, `ibv_dealloc_mw`.
pub mod window;
