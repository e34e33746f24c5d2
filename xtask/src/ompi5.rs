//! An Open MPI 5.0 of our own below target/, where the machine has an older one: Debian 13's packages, fetched from the mirror that apt
//! uses here, checked by apt's signatures, unpacked, never installed. Nothing outside of target/ changes, and no rights are needed.
//!
//!     target/oxib/openmpi5/
//!         usr, etc       the packages; usr/lib/x86_64-linux-gnu has Debian 13's C library, too
//!         bin/mpirun     and others: start what is in usr with that C library, and tell it where it lies
//!         bin/mpicc      the machine's gcc; its programs are bound to that C library
//!         bin/run-with-libc PROGRAM    the same for a program of the machine (NetPIPE, python3)
//!         complete       the recipe it was made by; another one, and it is made anew
//!
//! The C library is what makes it work on Debian 12, whose own is too old; a program is started with another one by
//! naming its loader. Debian 12's libraries work with the newer C library, not the other way round.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::packages;
use crate::report::phase;
use crate::workspace::Workspace;
use e2e::failure::Context;
use e2e::process::{Limits, ask, run};
use e2e::{Failure, OpenMpi, Result};

/// The distribution that has Open MPI 5.0.
const SUITE: &str = "trixie";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Changes with whatever would make an existing folder wrong.
const RECIPE: &str = "2";
const MULTIARCH: &str = "usr/lib/x86_64-linux-gnu";

/// Open MPI, and all that its libraries name as needed.
const PACKAGES: [&str; 23] = [
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi40",
    "libopenmpi-dev",
    "libpmix2t64",
    "libpmix-dev",
    "libevent-core-2.1-7t64",
    "libevent-pthreads-2.1-7t64",
    "libhwloc15",
    "libfabric1",
    "libpsm2-2",
    "libucx0",
    "libnl-3-200",
    "libnl-route-3-200",
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1t64",
    "libnuma1",
    "libmunge2",
    "libudev1",
    "libcap2",
    "libc6",
    "libgcc-s1",
];

/// The Open MPI that a command was told to use: `--ompi5`, `--mpi DIR`, or the one in the PATH, installed if there is none.
pub fn chosen(args: &Args, workspace: &Workspace) -> Result<OpenMpi> {
    if args.flag("ompi5") {
        packages::ensure(&packages::COMPILER, !args.flag("no-install"))?;
        return prepare(workspace);
    }
    let complete = || packages::has_mpi() && !OpenMpi::in_path().version().is_empty();
    if args.value("mpi").is_none() && !complete() {
        packages::ensure(&packages::MPI, !args.flag("no-install"))?;
    }
    OpenMpi::find(args.value("mpi"))
}

/// The one in the PATH if it is a 5.0; else the one below target/, made if it is not there yet.
///
/// # Errors
/// What could not be fetched or unpacked, and from where.
pub fn prepare(workspace: &Workspace) -> Result<OpenMpi> {
    let installed = OpenMpi::in_path();
    if installed.major() >= 5 {
        return Ok(installed);
    }
    let folder = workspace.target.join("oxib").join("openmpi5");
    if std::fs::read_to_string(folder.join("complete")).is_ok_and(|recipe| recipe == RECIPE) {
        return OpenMpi::below(&folder);
    }
    let what = format!("fetching Open MPI 5.0 from Debian {SUITE} into {} (once; 20 MB)", folder.display());
    let draft = folder.with_extension(format!("new-{}", std::process::id()));
    let made = phase(&what, |_| make(&draft)).and_then(|()| {
        let _there_may_be_none = std::fs::remove_dir_all(&folder);
        std::fs::rename(&draft, &folder).context(format_args!("cannot create {}", folder.display()))
    });
    let _renamed_if_all_went_well = std::fs::remove_dir_all(&draft);
    made?;
    OpenMpi::below(&folder)
}

fn make(draft: &Path) -> Result<()> {
    let packages = draft.join("packages");
    create(&packages)?;
    let apt = Apt::new(&draft.join("apt"))?;
    apt.get(&["update"], &packages)?;
    apt.get(&[&["download"], &PACKAGES[..]].concat(), &packages)?;
    for package in files(&packages)? {
        step(Command::new("dpkg-deb").arg("-x").arg(package).arg(draft), "unpack")?;
    }
    for folder in ["packages", "apt", "usr/share/doc", "usr/share/locale"] {
        let _smaller_but_not_needed = std::fs::remove_dir_all(draft.join(folder));
    }
    write_tools(&draft.join("bin"))?;
    write(&draft.join("complete"), RECIPE)?;
    OpenMpi::below(draft).map(drop)
}

/// An apt with lists, cache and sources of its own.
struct Apt {
    options: Vec<String>,
    site: String,
}

impl Apt {
    fn new(folder: &Path) -> Result<Apt> {
        let site = site()?;
        for part in ["state/lists/partial", "cache/archives/partial", "none"] {
            create(&folder.join(part))?;
        }
        let signed =
            if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        write(&folder.join("sources.list"), &format!("deb {signed}{site} {SUITE} main\n"))?;
        write(&folder.join("state/status"), "")?;
        let at = |name: &str| folder.join(name).display().to_string();
        let options = [
            format!("Dir::State={}", at("state")),
            format!("Dir::State::status={}", at("state/status")),
            format!("Dir::Cache={}", at("cache")),
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            format!("Dir::Etc::sourceparts={}", at("none")),
            format!("Dir::Etc::preferencesparts={}", at("none")),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Apt { options: options.into(), site })
    }

    /// `apt-get` with these words, in `folder`.
    fn get(&self, words: &[&str], folder: &Path) -> Result<()> {
        let mut command = Command::new("apt-get");
        command.arg("-q").args(self.options.iter().flat_map(|option| ["-o", option])).args(words);
        step(command.current_dir(folder), "fetch").map_err(|Failure(text)| {
            Failure(format!(
                "Open MPI 5.0 cannot be fetched from {} (Debian {SUITE}), so nothing can be tested with it; is that \
                 mirror reachable, and does it have {SUITE}?\n{text}",
                self.site
            ))
        })
    }
}

/// The mirror that apt has for this machine's own Debian.
fn site() -> Result<String> {
    let format = "$(SITE) $(RELEASE) $(COMPONENT)";
    let words = ["indextargets", "--no-release-info", "--format", format, "Created-By: Packages"];
    let text = ask("apt-get", &words).unwrap_or_default();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    site_of(&text, codename(&release)).map(str::to_owned).ok_or_else(|| {
        Failure(
            "apt has no source of Debian's own archive over http, so there is no mirror to take Open MPI 5.0 from; \
             see `apt-get indextargets`, and run `apt-get update` once"
                .to_owned(),
        )
    })
}

/// `http://mirror.example/debian bookworm main`, among other sources.
fn site_of<'a>(targets: &'a str, codename: &str) -> Option<&'a str> {
    let words = targets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = words.filter(|words| words.get(1..) == Some(&[codename, "main"]));
    ours.filter_map(|words| words.first().copied()).find(|site| site.starts_with("http"))
}

fn codename(os_release: &str) -> &str {
    os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable")
}

/// Scripts that find the rest by their own place, so that the folder may be moved.
fn write_tools(bin: &Path) -> Result<()> {
    create(bin)?;
    let head = format!(
        "#!/bin/sh\n\
         root=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\n\
         lib=$root/{MULTIARCH}\n\
         export OPAL_PREFIX=$root/usr PMIX_PREFIX=$root/usr PRTE_PREFIX=$root/usr OMPI_PRTERUN=$root/bin/prterun\n\
         with_libc() {{ argv0=$1; shift; exec \"$lib/ld-linux-x86-64.so.2\" --library-path \"$lib\" --argv0 \"$argv0\" \"$@\"; }}\n"
    );
    for (tool, program) in [("mpirun", "mpirun.openmpi"), ("prterun", "prterun"), ("ompi_info", "ompi_info")]
    {
        let line = format!("with_libc \"$root/usr/bin/{tool}\" \"$root/usr/bin/{program}\" \"$@\"\n");
        write_script(&bin.join(tool), &format!("{head}{line}"))?;
    }
    let line = "program=$1\nshift\nwith_libc \"$program\" \"$(command -v \"$program\")\" \"$@\"\n";
    write_script(&bin.join("run-with-libc"), &format!("{head}{line}"))?;
    // Our loader finds libraries by DT_RPATH, which, unlike LD_LIBRARY_PATH, is not handed down to programs of the machine;
    // the machine's linker does not know the newer C library that Open MPI's libraries want.
    let line = "exec gcc -I\"$lib/openmpi/include\" \"$@\" -L\"$lib\" -l:libmpi.so.40 -Wl,--allow-shlib-undefined \
                -Wl,--disable-new-dtags,-rpath,\"$lib\" -Wl,--dynamic-linker=\"$lib/ld-linux-x86-64.so.2\"\n";
    write_script(&bin.join("mpicc"), &format!("{head}{line}"))
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    write(path, text)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, executable)
        .context(format_args!("cannot make {} executable", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(format_args!("cannot write {}", path.display()))
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).context(format_args!("cannot create {}", folder.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).context(format_args!("cannot read {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn step(command: &mut Command, what: &str) -> Result<()> {
    let finished = run(command, Limits::silence(300), &mut |_| {})?;
    if finished.ok() {
        return Ok(());
    }
    Err(Failure(format!(
        "the step `{what}` {}:\n{}",
        finished.describe(),
        e2e::mpirun::indent(&finished.output)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_this_debian_is_used_and_no_other_source() {
        let targets = "https://deb.example.org/node nodistro main\n\
                       http://security.debian.org/debian-security bookworm-security main\n\
                       http://mirror.example.org/debian bookworm main\n";
        assert_eq!(site_of(targets, "bookworm"), Some("http://mirror.example.org/debian"));
        assert_eq!(site_of(targets, "trixie"), None);
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), "bookworm");
    }
}
