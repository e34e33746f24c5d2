//! Golden matrices: what follows from every input in every state of a manager's machine, a line a cell.

/// Widths of a line's columns: the state, the input, and all before what is said.
pub type Widths = (usize, usize, usize);

/// The line of a cell.
pub fn line(
    widths: Widths,
    (row, column): (&str, &str),
    (before, after): (&str, &str),
    said: &[String],
) -> String {
    let (state, input, left) = widths;
    let change = if before == after { "-".to_owned() } else { format!("-> {after}") };
    let line = format!("{row:<state$}{column:<input$}{change}");
    if said.is_empty() { line } else { format!("{line:<left$}{}", said.join(", ")) }
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
