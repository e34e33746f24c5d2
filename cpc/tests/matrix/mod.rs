//! Golden matrices: what follows from every input in every state of a manager's machine, a line a cell.

/// The counters of a machine, by name.
pub type Counters = Vec<(&'static str, u64)>;

/// What counted between the two, `[stale, ignored 2]`: the actions show the datagrams that are sent,
/// and the input is one that is received.
pub fn counted(before: &Counters, after: &Counters) -> Option<String> {
    assert!(before.len() == after.len() && !before.is_empty());
    let mut changes = Vec::new();
    for (&(name, old), &(same, new)) in before.iter().zip(after) {
        assert_eq!(name, same);
        let (_, name) = name.split_once('_').expect("the manager's name comes first");
        match new - old {
            _ if ["received", "sent"].contains(&name) => {}
            0 => {}
            1 => changes.push(name.to_owned()),
            more => changes.push(format!("{name} {more}")),
        }
    }
    (!changes.is_empty()).then(|| format!("[{}]", changes.join(", ")))
}

/// Widths of a line's columns: the state, the input, and all before what is said.
pub type Widths = (usize, usize, usize);

/// The line of a cell.
pub fn line(
    widths: Widths,
    (row, column): (&str, &str),
    (before, after): (&str, &str),
    said: &[String],
    counted: Option<&str>,
) -> String {
    let (state, input, left) = widths;
    let change = if before == after { "-".to_owned() } else { format!("-> {after}") };
    let line = format!("{row:<state$}{column:<input$}{change}");
    let said = (!said.is_empty()).then(|| said.join(", "));
    let what: Vec<&str> = said.as_deref().into_iter().chain(counted).collect();
    if what.is_empty() { line } else { format!("{line:<left$}{}", what.join(" ")) }
}

/// Compares the cells with the golden file's; `OXIB_PRINT_MATRIX` shows them.
pub fn check(golden: &str, found: &[String]) {
    let expected: Vec<&str> = golden.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    if std::env::var_os("OXIB_PRINT_MATRIX").is_some() {
        println!("{}", found.join("\n"));
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}
