//! Other processes: the test binary runs again, in a role, and talks in lines over its stdin and
//! stdout.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

const ROLE: &str = "OXIB_TEST_ROLE";

/// The role of this process; none in the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub struct Child {
    process: Process,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Runs the test `child_main` of this binary in `role`, with its segments in `dir`.
    pub fn start(role: &str, dir: &Path) -> Child {
        Child::start_with(role, dir, &[])
    }

    /// The same with these variables.
    pub fn start_with(role: &str, dir: &Path, variables: &[(&str, &str)]) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_main", "--nocapture", "--test-threads=1", "--quiet"]);
        command.env(ROLE, role).env("SOFTIB_DIR", dir);
        command.envs(variables.iter().copied());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Child { process, stdin, stdout }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// The next line that it says; the test runner's own output is skipped.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the child ended early");
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim().to_owned();
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// How it ends by itself.
    pub fn end(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Lets it end.
    pub fn finish(mut self) {
        drop(self.stdin);
        assert!(self.process.wait().unwrap().success());
    }
}

/// A child whose test has failed does not outlive it.
pub fn say(line: &str) {
    println!("> {line}");
}

/// In a child: the next line of the parent.
pub fn listen() -> String {
    let mut line = String::new();
    assert!(std::io::stdin().read_line(&mut line).unwrap() > 0, "the parent has ended");
    line.trim().to_owned()
}

/// What a process publishes: its adverts, in one word.
pub fn advert_word(adverts: &[cpc::Advert]) -> String {
    let advert = &adverts[0];
    let blob: String = advert.blob.iter().map(|b| format!("{b:02x}")).collect();
    format!("{} {} {blob}", advert.name, advert.priority)
}

pub fn parse_advert(word: &str) -> Vec<cpc::Advert> {
    let parts: Vec<&str> = word.split(' ').collect();
    let blob = (0..parts[2].len()).step_by(2).map(|i| u8::from_str_radix(&parts[2][i..i + 2], 16).unwrap());
    vec![cpc::Advert { name: parts[0].to_owned(), priority: parts[1].parse().unwrap(), blob: blob.collect() }]
}

/// A directory of its own, gone with the test.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(test: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("oxib-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }

    pub fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
