//! `docs/parameters.md`, rendered from the table.
#![forbid(unsafe_code)]

use super::base::BASE_ROWS;
use super::table::{ROWS, Row, Scope};
use super::value::Kind;
use std::fmt::Write;

/// The page. A test compares it with the file; `OXIB_WRITE_DOCS=1 cargo test -p btl --lib docs`
/// writes the file.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    for row in ROWS {
        page.push_str(&section(row));
    }
    page.push_str(BASE_HEAD);
    for row in BASE_ROWS {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{}` | {} | {} |", row.name, row.default, row.help);
    }
    page
}

const HEAD: &str = "\
# Parameters

Made from the table in `btl/src/mca/params/table.rs`; please change it there.

Every name has the prefix `btl_oxib_`. Set one with `mpirun --mca btl_oxib_NAME VALUE`, with the environment variable
`OMPI_MCA_btl_oxib_NAME`, or in a parameter file (`~/.openmpi/mca-params.conf`, `mpirun --mca mca_base_param_files FILE`).
`ompi_info --param btl oxib --level 9` shows the values that a job would get, if the plugin is installed where Open MPI looks by
itself; else it is told where: `OMPI_MCA_mca_base_component_path=DIR:SYS_DEFAULT ompi_info --param btl oxib --level 9`. Times are
written with a unit (`500ms`), sizes with one or without (`8k`, `8192`). With a value that can't be used oxib says so once and leaves
the job to Open MPI's other transports.
";

const BASE_HEAD: &str = "
## Parameters of every BTL

Open MPI registers these itself, under the same prefix; its own texts are in `ompi_info`. The three limits are lowered to the
largest buffer of `receive_queues` where they are not set.

| name | default | meaning |
|------|---------|---------|
";

fn section(row: &Row) -> String {
    let default = match row.default {
        "" => "empty".to_owned(),
        text => format!("`{text}`"),
    };
    let values = match row.kind {
        Kind::Text => String::new(),
        kind => format!("- values: {}\n", kind.expected()),
    };
    let scope = match row.scope {
        Scope::Local => "each process may have its own",
        Scope::All => "should be the same in all processes",
        Scope::AllEqual => "processes with different values do not reach each other",
    };
    format!(
        "\n## {}\n\n{}.\n\n- default: {default}\n{values}- level {}; {scope}\n",
        row.name(),
        row.help,
        row.level
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_page_in_docs_is_the_one_of_the_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parameters.md");
        if std::env::var_os("OXIB_WRITE_DOCS").is_some() {
            std::fs::write(&file, super::markdown()).expect("docs/ is writable");
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == super::markdown(), "out of date: OXIB_WRITE_DOCS=1 cargo test -p btl --lib docs");
    }
}
