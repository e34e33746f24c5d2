//! The transports with their settings: the columns of the tables. The first is compared with the others.

use std::path::{Path, PathBuf};

use crate::args::Args;
use crate::ways::{self, Way};
use crate::workspace::Workspace;
use e2e::failure::Context;
use e2e::machine::SegmentFolder;
use e2e::mpirun::{Binding, Job};
use e2e::{Failure, OpenMpi, Result};

/// A transport with its settings, as a column of the tables.
#[derive(Debug)]
pub struct Contender {
    /// Head of the column.
    pub name: String,
    way: &'static Way,
    /// Another build of the plugin.
    plugin: Option<PathBuf>,
    /// Beside those of the way.
    settings: Settings,
    segments: SegmentFolder,
}

impl Contender {
    fn new(name: &str, way: &'static Way) -> Result<Self> {
        let (segments, settings) = (SegmentFolder::create()?, Settings::default());
        Ok(Contender { name: name.to_owned(), way, plugin: None, settings, segments })
    }

    /// As it comes, or with the settings with which it is fastest.
    fn stock(way: &'static Way, fastest: bool) -> Result<Self> {
        let mut contender = Contender::new(way.name, way)?;
        contender.settings.parameters.extend(way.fastest().filter(|_| fastest));
        Ok(contender)
    }

    /// What differs from its defaults.
    pub fn settings(&self) -> String {
        let plugin = self.plugin.iter().map(|folder| folder.display().to_string());
        let words = plugin.chain(Some(self.settings.describe()).filter(|text| !text.is_empty()));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Whether it is ours: then its failure is the bench's.
    pub fn is_ours(&self) -> bool {
        self.way.is_oxib()
    }

    /// Whether it runs on the software device's drop-in libraries.
    pub fn needs_drop_in(&self) -> bool {
        self.way.needs_drop_in()
    }

    /// So many ranks, each on a processor of its own if there are enough.
    pub fn job(&self, mpi: &OpenMpi, workspace: &Workspace, ranks: usize, program: &Path) -> Job {
        let job = self.way.job(mpi, workspace, self.segments.path(), ranks, program);
        let job = self.plugin.iter().fold(job, |job, folder| job.plugin(folder));
        let job = job.parameters(&self.settings.parameters).binding(Binding::Pinned);
        self.settings.variables.iter().fold(job, |job, (name, value)| job.variable(name, value))
    }
}

/// Those that `--transports`, `--try` and `--against` name, or all.
///
/// # Errors
/// A name, a setting or a folder makes no sense.
pub fn contenders(args: &Args, mpi: &OpenMpi) -> Result<Vec<Contender>> {
    let names = ["oxib", mpi.shared_memory(), "tcp", "UCX sm", "openib", "UCX rc_v"];
    let known: Vec<&'static Way> = ways::of(mpi).collect();
    let chosen: Vec<&'static Way> = match args.value("transports") {
        Some(text) => text.split(',').map(|word| named(&known, word)).collect::<Result<_>>()?,
        None => names.iter().filter_map(|name| known.iter().find(|way| way.name == *name).copied()).collect(),
    };
    let fastest = !args.flag("defaults");
    let mut all = chosen.iter().map(|way| Contender::stock(way, fastest)).collect::<Result<Vec<_>>>()?;
    if let Some(text) = args.value("try") {
        all.insert(1, tried(&known, text)?);
    }
    if let Some(folder) = args.value("against") {
        let plugin = Some(plugin_folder(folder)?);
        all.insert(1, Contender { plugin, ..Contender::new("against", named(&known, "oxib")?)? });
    }
    if all.len() < 2 {
        return Err(Failure::new("one transport has nothing to be compared with"));
    }
    Ok(all)
}

/// By its name, or by that without capitals and spaces: "ucx-rc_v", "oxib-s".
fn named(known: &[&'static Way], word: &str) -> Result<&'static Way> {
    let found = known.iter().find(|way| way.name == word || short(way.name) == word.to_lowercase()).copied();
    let names: Vec<String> = known.iter().map(|way| short(way.name)).collect();
    found.context(format_args!("no transport is called `{word}` here; there are {}", names.join(", ")))
}

fn short(name: &str) -> String {
    name.to_lowercase().replace(',', "").replace(' ', "-")
}

/// Settings of oxib, or of the transport that stands in front of them: "openib: btl_openib_use_eager_rdma=0".
fn tried(known: &[&'static Way], text: &str) -> Result<Contender> {
    let (name, text) = match text.split_once(": ") {
        Some((name, rest)) => (name, rest),
        None => ("oxib", text),
    };
    let settings = Settings::parse(text)?;
    Ok(Contender { settings, ..Contender::new("tried", named(known, name)?)? })
}

/// The MCA parameters of `--try` in guests, where oxib alone is tried.
///
/// # Errors
/// It is no such list, or names something else.
pub fn parameters(text: &str) -> Result<Vec<(String, String)>> {
    let settings = Settings::parse(text)?;
    if !settings.variables.is_empty() {
        return Err(Failure::new(
            "--try takes oxib's MCA parameters with --kernel, no variables of the environment",
        ));
    }
    Ok(settings.parameters)
}

fn plugin_folder(text: &str) -> Result<PathBuf> {
    let folder = std::path::absolute(text).context(format_args!("--against {text}"))?;
    let plugin = folder.join("mca_btl_oxib.so");
    plugin.is_file().then_some(folder).context(format_args!("--against: there is no {}", plugin.display()))
}

/// What a user can set.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    /// MCA parameters.
    parameters: Vec<(String, String)>,
    /// In the environment of all ranks: names in capitals.
    variables: Vec<(String, String)>,
}

impl Settings {
    /// "btl_oxib_max_inline=0 UCX_TLS=posix".
    fn parse(text: &str) -> Result<Self> {
        let one = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let all = text.split_whitespace().map(one).collect::<Option<Vec<_>>>();
        let all = all.context(format_args!("--try takes NAME=VALUE ..., not `{text}`"))?;
        let capital = |(name, _): &(String, String)| name.starts_with(|c: char| c.is_ascii_uppercase());
        let (variables, parameters) = all.into_iter().partition(capital);
        Ok(Settings { parameters, variables })
    }

    /// "btl_oxib_max_inline=0 UCX_TLS=posix".
    fn describe(&self) -> String {
        let all = self.parameters.iter().chain(&self.variables);
        all.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_goes_by_its_name_in_tables_or_by_a_short_one() {
        let known: Vec<&'static Way> = ways::of(&OpenMpi::in_path()).collect();
        for (word, name) in
            [("UCX sm", "UCX sm"), ("ucx-sm", "UCX sm"), ("oxib-s", "oxib, S"), ("tcp", "tcp")]
        {
            assert_eq!(named(&known, word).unwrap().name, name);
        }
        assert!(named(&known, "tpc").unwrap_err().0.contains("ucx-sm"));
    }

    #[test]
    fn settings_are_pairs_and_those_in_capitals_are_variables() {
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let settings = Settings::parse("c=P,1:S,2 UCX_TLS=sm").unwrap();
        assert_eq!(settings, Settings { parameters: pair("c", "P,1:S,2"), variables: pair("UCX_TLS", "sm") });
        assert!(Settings::parse("a").is_err());
    }

    #[test]
    fn what_is_tried_belongs_to_oxib_unless_another_transport_stands_in_front() {
        let known: Vec<&'static Way> = ways::of(&OpenMpi::in_path()).collect();
        assert_eq!(tried(&known, "a=P,1:S,2").unwrap().way.name, "oxib");
        assert_eq!(tried(&known, "ucx-sm: UCX_TLS=posix").unwrap().way.name, "UCX sm");
        assert!(tried(&known, "nothing: a=b").is_err());
    }
}
