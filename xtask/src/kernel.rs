//! `cargo xtask test --kernel`: the plugin over a real kernel's verbs, in guests that QEMU emulates (tests/kernel, [`e2e::kernel`]).

use std::time::Instant;

use crate::args::Args;
use crate::report::{conclude, table};
use crate::workspace::Workspace;
use crate::{build, packages};
use e2e::kernel::{self, Setting};
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, machine, say};

/// Words are filters, as without `--kernel`.
pub fn test(args: &Args) -> Result<()> {
    if args.flag("list") {
        kernel::names(args.words()).iter().for_each(|name| say!("{name}"));
        return Ok(());
    }
    let workspace = Workspace::find()?;
    let _claim = workspace.claim()?;
    packages::ensure(&[&packages::MPI[..], &packages::KERNEL].concat(), !args.flag("no-install"))?;
    let began = Instant::now();
    build::build(&workspace, false)?;
    let (tally, figures) = kernel::run(&setting(&workspace)?, args.words())?;
    for (world, rows) in figures.tables() {
        say!("\nhalf round trips, {world} (emulated; load {:.1}):\n{}", machine::load(), table(&rows));
    }
    conclude(&tally, began.elapsed())
}

/// What guests get of this machine.
pub fn setting(workspace: &Workspace) -> Result<Setting> {
    Ok(Setting {
        plugin: workspace.plugin_folder(),
        programs: Programs::new(&OpenMpi::in_path(), &workspace.root, &workspace.target)?,
        scripts: workspace.root.join("tests/kernel"),
        configs: workspace.root.join("configs"),
        cache: workspace.target.join("oxib").join("kernel"),
    })
}
