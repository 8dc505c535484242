//! Sets keys in the text of a configuration file, and leaves everything else as somebody wrote it: comments, order, blanks.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Sets `key` or `table.key` or `table.name.key`. The error says why the text has no place for it.
pub fn set(text: &str, key: &str, value: &toml::Value) -> Result<String, String> {
    let written = literal(value);
    let parsed = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let parts: Vec<&str> = key.split('.').collect();
    if let Some(span) = find(parsed.get_ref(), &parts) {
        return Ok(format!("{}{written}{}", &text[..span.start], &text[span.end..]));
    }
    let Some((name, table)) = parts.split_last() else { return Err("an empty key".into()) };
    if table.is_empty() {
        // Before every header, and after what the file says of itself.
        let place = after_first_comment(text);
        return Ok(format!("{}{name} = {written}\n{}", &text[..place], &text[place..]));
    }
    let table = table.join(".");
    match header(text, &table) {
        Some(place) => Ok(format!("{}{name} = {written}\n{}", &text[..place], &text[place..])),
        None if has(parsed.get_ref(), &table.split('.').collect::<Vec<_>>()) => {
            Err(format!("{table} is written in one line; write it as [{table}] first"))
        }
        None => {
            let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
            let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            Ok(format!("{text}{end}{gap}[{table}]\n{name} = {written}\n"))
        }
    }
}

/// Where a value is.
fn find(table: &DeTable<'_>, parts: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = parts.split_first()?;
    let (_, value) = table.iter().find(|(name, _)| name.get_ref() == first)?;
    match (value.get_ref(), rest.is_empty()) {
        (_, true) => Some(value.span()),
        (DeValue::Table(inner), false) => find(inner, rest),
        _ => None,
    }
}

/// Whether a value has its own keys there with a value of their own, and not only tables below it.
fn has(table: &DeTable<'_>, parts: &[&str]) -> bool {
    let Some((first, rest)) = parts.split_first() else { return true };
    match table.iter().find(|(name, _)| name.get_ref() == first).map(|(_, value)| value.get_ref()) {
        Some(DeValue::Table(inner)) if rest.is_empty() => {
            inner.iter().any(|(_, value)| !matches!(value.get_ref(), DeValue::Table(_)))
        }
        Some(DeValue::Table(inner)) => has(inner, rest),
        _ => false,
    }
}

/// Where the line after `[table]` begins. A missing line break at the end of the text is not looked for.
fn header(text: &str, table: &str) -> Option<usize> {
    let mut place = 0;
    for line in text.split_inclusive('\n') {
        place += line.len();
        let plain = line.split('#').next().unwrap_or_default().trim();
        let named = plain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim);
        if named == Some(table) && line.ends_with('\n') {
            return Some(place);
        }
    }
    None
}

fn after_first_comment(text: &str) -> usize {
    let mut place = 0;
    for line in text.split_inclusive('\n') {
        if !line.starts_with('#') || !line.ends_with('\n') {
            break;
        }
        place += line.len();
    }
    place
}

fn literal(value: &toml::Value) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# our server\nlisten = \"127.0.0.1:7070\"   # behind nginx\n\n[quota]\nsandboxes = 7\n\n\
                        [providers.box]\nkind = \"local\"\n";

    fn text(word: &str) -> toml::Value {
        toml::Value::String(word.into())
    }

    #[test]
    fn a_key_that_is_there_gets_its_value_and_nothing_else_moves() {
        let changed = set(TEXT, "listen", &text("0.0.0.0:80")).unwrap();
        assert_eq!(changed, TEXT.replace("\"127.0.0.1:7070\"", "\"0.0.0.0:80\""));
        let changed = set(TEXT, "quota.sandboxes", &toml::Value::Integer(9)).unwrap();
        assert_eq!(changed, TEXT.replace("sandboxes = 7", "sandboxes = 9"));
    }

    #[test]
    fn a_new_key_goes_to_its_table_or_to_one_of_its_own() {
        let changed = set(TEXT, "domain", &text("x.example")).unwrap();
        assert!(changed.starts_with("# our server\ndomain = \"x.example\"\nlisten = "), "{changed}");
        let changed = set(TEXT, "quota.running_sandboxes", &toml::Value::Integer(3)).unwrap();
        assert!(changed.contains("[quota]\nrunning_sandboxes = 3\nsandboxes = 7\n"), "{changed}");
        let changed = set(TEXT, "providers.box.ready", &toml::Value::Integer(3)).unwrap();
        assert!(changed.ends_with("[providers.box]\nready = 3\nkind = \"local\"\n"), "{changed}");
        let changed = set(TEXT, "tls.listen", &text("127.0.0.1:7443")).unwrap();
        assert!(changed.ends_with("kind = \"local\"\n\n[tls]\nlisten = \"127.0.0.1:7443\"\n"), "{changed}");
        assert_eq!(set("", "tls.listen", &text("a")).unwrap(), "[tls]\nlisten = \"a\"\n");
        assert_eq!(set("a = 1", "tls.listen", &text("b")).unwrap(), "a = 1\n\n[tls]\nlisten = \"b\"\n");
    }

    #[test]
    fn what_was_set_is_read_again_and_all_else_is_as_it_was() {
        let secret = text("with \"quotes\" and \\ and\nlines");
        let mut changed = TEXT.to_owned();
        for (key, value) in [("api_key", &secret), ("providers.e2b.kind", &text("e2b")), ("log.json", &true.into())] {
            changed = set(&changed, key, value).unwrap();
        }
        let read: toml::Table = changed.parse().unwrap();
        assert_eq!((&read["api_key"], &read["providers"]["e2b"]["kind"]), (&secret, &text("e2b")));
        assert_eq!(read["providers"]["box"]["kind"], text("local"));
        assert_eq!(read["quota"]["sandboxes"], toml::Value::Integer(7));
        assert!(changed.contains("# behind nginx"));
    }

    #[test]
    fn a_table_in_one_line_is_refused_rather_than_broken() {
        let refused = set("tls = { listen = \"a\" }\n", "tls.key", &text("b")).unwrap_err();
        assert_eq!(refused, "tls is written in one line; write it as [tls] first");
        assert!(set("tls = { listen = \"a\" }\n", "tls.listen", &text("b")).unwrap().contains("\"b\""));
        assert!(set("broken = \n", "a", &text("b")).is_err());
    }
}
