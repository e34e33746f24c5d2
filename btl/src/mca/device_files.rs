//! The files of device parameters: which there are, and what stands in them.
//!
//! The user's are those of `btl_oxib_device_param_files`. Without that they are [`SHIPPED`] and the
//! files of the folder [`DROP_IN`], both in the folder of the plugin: it is the one place that every
//! Open MPI has found already. What is not there of these is no mistake.

use super::show::Report;
use crate::protocol::device_ini::{Devices, MAX_FILE};
use std::ffi::{CStr, OsStr, c_void};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Beside the plugin: the file that comes with it.
pub const SHIPPED: &str = "oxib-device-params.ini";

/// Beside the plugin: the folder for files of the machine's administrator.
pub const DROP_IN: &str = "oxib-device-params.d";

/// How the names of files in a folder end that are read.
const EXTENSION: &str = "ini";

/// Reads the files that are `named`, or those beside the plugin.
///
/// # Errors
/// The report about the first that cannot be read or understood.
pub fn read(named: &[String]) -> Result<Devices, Box<Report>> {
    match (named, own_folder()) {
        ([], None) => Ok(Devices::default()),
        ([], Some(folder)) => read_all(
            [SHIPPED, DROP_IN].map(|name| folder.join(name)).into_iter().filter(|path| path.exists()),
        ),
        (named, _) => read_all(named.iter().map(PathBuf::from)),
    }
}

fn read_all(paths: impl Iterator<Item = PathBuf>) -> Result<Devices, Box<Report>> {
    let mut devices = Devices::default();
    for path in paths {
        let files = files_of(&path).map_err(|error| unreadable(&path, &error))?;
        for file in files {
            add(&mut devices, &file)?;
        }
    }
    Ok(devices)
}

/// A folder stands for its files, in the order of their names.
fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let paths = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension() == Some(OsStr::new(EXTENSION)));
    files.sort();
    Ok(files)
}

fn add(devices: &mut Devices, file: &Path) -> Result<(), Box<Report>> {
    let content = content(file).map_err(|error| unreadable(file, &error))?;
    devices.read(&file.to_string_lossy(), &content).map_err(|error| {
        let place = format!("{}, line {}, column {}", error.file, error.line, error.column);
        let report = report(place).with("Found", error.found).with("Expected", error.expected);
        Box::new(report)
    })?;
    log::debug!("device parameters are read from {}", file.display());
    Ok(())
}

/// No more than the parser takes, and a byte by which it sees that. A FIFO is not waited for.
fn content(file: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

fn unreadable(path: &Path, error: &io::Error) -> Box<Report> {
    let why = match error.kind() {
        ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        _ => error.to_string(),
    };
    Box::new(report(path.display().to_string()).with("Problem", why))
}

/// The message about a file, as that about a bad parameter.
fn report(place: String) -> Report {
    let what = "The oxib BTL can't use a file of device parameters. It takes no part in this job; Open MPI goes\n\
                on with its other transports.";
    let remedy = format!(
        "Please correct the file, or name others with btl_oxib_device_param_files; without that parameter\n\
         they are {SHIPPED} and {DROP_IN}/*.{EXTENSION} beside the plugin. docs/tuning.md,\n\
         section 5.1, describes what may stand in them."
    );
    Report::common(what, remedy).with("File", place)
}

/// The folder of the file that this code was loaded from.
fn own_folder() -> Option<PathBuf> {
    // SAFETY: plain C data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = read as *const c_void;
    // SAFETY: dladdr takes any address, and `info` is ours to be written.
    let found = unsafe { libc::dladdr(here, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: dladdr has stored a C string of the loader's, which lives as long as this code is
    // loaded.
    let name = found.then(|| unsafe { CStr::from_ptr(info.dli_fname) })?;
    let file = fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()?;
    file.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Folder {
            let folder = std::env::temp_dir().join(format!("oxib-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            for (file, text) in files {
                fs::write(folder.join(file), text).expect("a file");
            }
            Folder(folder)
        }

        fn named(&self, files: &[&str]) -> Vec<String> {
            files.iter().map(|file| self.0.join(file).to_string_lossy().into_owned()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mtu(devices: &Devices) -> Option<u32> {
        devices.settings((1, 2)).mtu.and_then(|mtu| mtu.value)
    }

    #[test]
    fn every_file_of_a_list_is_read_the_last_one_too_and_it_wins() {
        let folder =
            Folder::new("list", &[("a.ini", "[default]\nmtu = 256\n"), ("b.ini", "[default]\nmtu = 512\n")]);
        for (list, wanted) in [(["a.ini", "b.ini"], 512), (["b.ini", "a.ini"], 256)] {
            assert_eq!(mtu(&read(&folder.named(&list)).expect("two files")), Some(wanted));
        }
    }

    #[test]
    fn a_folder_stands_for_its_ini_files_in_the_order_of_their_names() {
        let files = [
            ("20.ini", "[default]\nmtu = 512\n"),
            ("10.ini", "[default]\nmtu = 256\nmax_inline_data = 8\n"),
            ("99.ini.bak", "nonsense"),
        ];
        let folder = Folder::new("folder", &files);
        let devices = read(&folder.named(&[""])).expect("a folder");
        assert_eq!(mtu(&devices), Some(512));
        assert!(devices.settings((1, 2)).max_inline.is_some());
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_an_error_and_none_beside_the_plugin_is_not() {
        let folder = Folder::new("missing", &[("a.ini", "")]);
        let text = read(&folder.named(&["a.ini", "b.ini"])).expect_err("no b.ini").text();
        assert!(text.contains("b.ini") && text.contains("there is no such file"), "{text}");
        assert!(read(&[]).is_ok(), "nothing lies beside the test");
    }

    #[test]
    fn a_mistake_is_reported_with_file_line_and_column() {
        let folder = Folder::new("mistake", &[("a.ini", "[default]\nmtu = 1000\n")]);
        let text = read(&folder.named(&["a.ini"])).expect_err("no MTU").text();
        for part in ["a.ini, line 2, column 7", "\"1000\"", "256, 512", "Open MPI goes", "docs/tuning.md"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
