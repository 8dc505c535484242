//! A recipe as it is written: TOML whose every key is known. What is wrong is told with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::{Argument, Kind, Recipe, Secret, Variant};
use crate::build::{Act, Base, SecretMount};
use crate::provider::Isolation;
use crate::sandbox::LimitsChange;
use crate::template::name::check_name;

/// What recipes stand on where nothing is named, and what a template may be until it is built.
const USUAL: &str = "base";

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub line: Option<usize>,
    pub message: String,
}

impl Problem {
    pub(super) fn whole(message: impl Into<String>) -> Problem {
        Problem { line: None, message: message.into() }
    }

    fn at(text: &str, span: Option<Range<usize>>, message: impl Into<String>) -> Problem {
        let line = span.map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            before.matches('\n').count() + 1
        });
        Problem { line, message: message.into() }
    }
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Problem::whole(message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    description: String,
    #[serde(default)]
    aliases: Vec<Spanned<String>>,
    #[serde(default)]
    needs: Vec<String>,
    template: Option<String>,
    image: Option<Spanned<String>>,
    start: Option<String>,
    ready: Option<String>,
    #[serde(default)]
    limits: LimitsChange,
    isolation: Option<Isolation>,
    #[serde(default)]
    interpreter: bool,
    until_built: Option<Spanned<String>>,
    #[serde(default)]
    host_python: bool,
    #[serde(default)]
    arguments: BTreeMap<String, Spanned<WrittenArgument>>,
    #[serde(default)]
    secrets: BTreeMap<String, Spanned<WrittenSecret>>,
    #[serde(default)]
    variants: BTreeMap<String, Spanned<WrittenVariant>>,
    #[serde(default)]
    steps: Vec<Spanned<WrittenStep>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenArgument {
    description: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    default: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSecret {
    description: String,
    path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenVariant {
    description: Option<String>,
    template: Option<String>,
    image: Option<String>,
    #[serde(default)]
    arguments: BTreeMap<String, String>,
}

/// A table with one key, as a step of the API is an object with one field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStep {
    run: Option<WrittenRun>,
    copy: Option<WrittenCopy>,
    env: Option<BTreeMap<String, String>>,
    workdir: Option<String>,
    user: Option<WrittenUser>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRun {
    command: Option<String>,
    /// A file beside the recipe whose text is the command.
    script: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCopy {
    /// A file beside the recipe.
    source: String,
    destination: String,
    owner: Option<String>,
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenUser {
    name: String,
    #[serde(default)]
    sudo: bool,
}

/// Reads a recipe. `beside` returns the text of a file that lies beside it.
pub(super) fn read(name: &str, text: &str, beside: &dyn Fn(&str) -> Result<String, String>) -> Result<Recipe, Problem> {
    let written: Written = toml::from_str(text)
        .map_err(|error: toml::de::Error| Problem::at(text, error.span(), one_line(error.message())))?;
    let reader = Reader { text, beside };
    let base = match (&written.template, &written.image) {
        (Some(_), Some(image)) => return Err(reader.at(image, "image and template exclude each other: name one")),
        (_, Some(image)) => Base::Image(image.get_ref().clone()),
        (template, None) => Base::Template(template.clone().unwrap_or_else(|| USUAL.to_owned())),
    };
    let until_built = match &written.until_built {
        Some(other) if other.get_ref() != USUAL => {
            return Err(reader.at(other, format!("until_built: {USUAL:?} is the only template that is always there")));
        }
        other => other.is_some(),
    };
    for alias in &written.aliases {
        check_name(alias.get_ref()).map_err(|error| reader.at(alias, error.to_string()))?;
    }
    let arguments = reader.arguments(&written.arguments)?;
    let secrets = reader.secrets(&written.secrets, &arguments)?;
    let variants = reader.variants(&written.variants, &arguments)?;
    if written.steps.is_empty() {
        return Err(Problem::whole("steps: a recipe has at least one, [[steps]]"));
    }
    let steps = written.steps.iter().map(|step| reader.step(step, &secrets)).collect::<Result<_, _>>()?;
    Ok(Recipe {
        name: name.to_owned(),
        aliases: written.aliases.into_iter().map(Spanned::into_inner).collect(),
        description: written.description,
        needs: written.needs,
        base,
        start: written.start,
        ready: written.ready,
        limits: written.limits,
        isolation: written.isolation,
        interpreter: written.interpreter,
        until_built,
        host_python: written.host_python,
        arguments,
        secrets,
        variants,
        steps,
        text: text.to_owned(),
        path: None,
    })
}

fn one_line(message: &str) -> String {
    message.trim_end().replace('\n', ", ")
}

struct Reader<'a> {
    text: &'a str,
    beside: &'a dyn Fn(&str) -> Result<String, String>,
}

impl Reader<'_> {
    fn at<T>(&self, thing: &Spanned<T>, message: impl Into<String>) -> Problem {
        Problem::at(self.text, Some(thing.span()), message)
    }

    fn arguments(
        &self,
        written: &BTreeMap<String, Spanned<WrittenArgument>>,
    ) -> Result<BTreeMap<String, Argument>, Problem> {
        let mut arguments = BTreeMap::new();
        for (name, spanned) in written {
            let one = spanned.get_ref();
            if !is_variable(name) {
                return Err(self.at(spanned, format!("arguments.{name}: letters, digits and '_' make the name")));
            }
            let default = one.kind.judge(&one.default);
            let default = default.map_err(|why| self.at(spanned, format!("arguments.{name}.default: {why}")))?;
            let argument = Argument { description: one.description.clone(), kind: one.kind, default };
            arguments.insert(name.clone(), argument);
        }
        Ok(arguments)
    }

    fn secrets(
        &self,
        written: &BTreeMap<String, Spanned<WrittenSecret>>,
        arguments: &BTreeMap<String, Argument>,
    ) -> Result<BTreeMap<String, Secret>, Problem> {
        let mut secrets = BTreeMap::new();
        for (name, spanned) in written {
            let one = spanned.get_ref();
            let refuse = |why: &str| self.at(spanned, format!("secrets.{name}: {why}"));
            if arguments.contains_key(name) {
                return Err(refuse("it is an argument as well: call one of them otherwise"));
            }
            // A variable is the name itself.
            if one.path.is_none() && !is_variable(name) {
                return Err(refuse("letters, digits and '_' make the name of a variable; for a file, set path"));
            }
            let secret = Secret { description: one.description.clone(), path: one.path.clone() };
            secrets.insert(name.clone(), secret);
        }
        Ok(secrets)
    }

    fn variants(
        &self,
        written: &BTreeMap<String, Spanned<WrittenVariant>>,
        arguments: &BTreeMap<String, Argument>,
    ) -> Result<BTreeMap<String, Variant>, Problem> {
        let mut variants = BTreeMap::new();
        for (name, spanned) in written {
            let one = spanned.get_ref();
            let refuse = |why: String| self.at(spanned, format!("variants.{name}: {why}"));
            check_name(name).map_err(|error| refuse(error.to_string()))?;
            let base = match (&one.template, &one.image) {
                (Some(_), Some(_)) => return Err(refuse("image and template exclude each other: name one".into())),
                (Some(template), None) => Some(Base::Template(template.clone())),
                (None, Some(image)) => Some(Base::Image(image.clone())),
                (None, None) => None,
            };
            let mut values = BTreeMap::new();
            for (argument, value) in &one.arguments {
                let known = arguments.get(argument);
                let known = known.ok_or_else(|| refuse(format!("there is no [arguments.{argument}]")))?;
                let value = known.kind.judge(value).map_err(|why| refuse(format!("{argument}: {why}")))?;
                values.insert(argument.clone(), value);
            }
            variants.insert(name.clone(), Variant { description: one.description.clone(), base, arguments: values });
        }
        Ok(variants)
    }

    fn step(&self, spanned: &Spanned<WrittenStep>, secrets: &BTreeMap<String, Secret>) -> Result<Act, Problem> {
        let step = spanned.get_ref();
        let act = self.act(step, secrets).map_err(|why| self.at(spanned, format!("steps: {why}")))?;
        act.check().map_err(|error| self.at(spanned, format!("steps: {error}")))?;
        Ok(act)
    }

    fn act(&self, step: &WrittenStep, secrets: &BTreeMap<String, Secret>) -> Result<Act, String> {
        match step {
            WrittenStep { run: Some(run), copy: None, env: None, workdir: None, user: None } => {
                let command = match (&run.command, &run.script) {
                    (Some(command), None) => command.clone(),
                    (None, Some(script)) => self.beside(script)?,
                    _ => return Err("run has either command or script".into()),
                };
                Ok(Act::Run { command, user: run.user.clone(), secrets: mounts(secrets) })
            }
            WrittenStep { run: None, copy: Some(copy), env: None, workdir: None, user: None } => {
                let mode = match &copy.mode {
                    Some(digits) => Some(
                        u32::from_str_radix(digits, 8)
                            .map_err(|_| format!("copy.mode: {digits:?} is no octal number such as 755"))?,
                    ),
                    None => None,
                };
                let content = self.beside(&copy.source)?;
                Ok(Act::File { path: copy.destination.clone(), content, owner: copy.owner.clone(), mode })
            }
            WrittenStep { run: None, copy: None, env: Some(values), workdir: None, user: None } => {
                Ok(Act::Env { values: values.clone().into_iter().collect() })
            }
            WrittenStep { run: None, copy: None, env: None, workdir: Some(path), user: None } => {
                Ok(Act::Workdir { path: path.clone() })
            }
            WrittenStep { run: None, copy: None, env: None, workdir: None, user: Some(user) } => {
                Ok(Act::User { name: user.name.clone(), sudo: user.sudo })
            }
            _ => Err("each has exactly one of run, copy, env, workdir and user".into()),
        }
    }

    /// The text of a file beside the recipe: a name, never a path that leads elsewhere.
    fn beside(&self, name: &str) -> Result<String, String> {
        let fits = !name.is_empty()
            && !name.starts_with('.')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !fits {
            return Err(format!("{name:?} is no name of a file beside the recipe"));
        }
        (self.beside)(name)
    }
}

/// Every command may read every secret that is given.
fn mounts(secrets: &BTreeMap<String, Secret>) -> Vec<SecretMount> {
    let mount = |(name, secret): (&String, &Secret)| SecretMount {
        name: name.clone(),
        path: secret.path.clone(),
        variable: secret.path.is_none().then(|| name.clone()),
        required: false,
    };
    secrets.iter().map(mount).collect()
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Kind {
    /// The value as commands get it, or why it is none.
    pub fn judge(self, value: &str) -> Result<String, String> {
        match self {
            Kind::Line if value.chars().any(char::is_control) => Err("a text of one line is wanted".into()),
            Kind::Line => Ok(value.to_owned()),
            Kind::Word => {
                let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-+".contains(&b);
                if value.starts_with('-') || !value.bytes().all(fits) {
                    return Err(format!("{value:?} is no word of letters, digits, '.', '_', '-' and '+'"));
                }
                Ok(value.to_owned())
            }
            Kind::Packages => {
                for package in value.split_whitespace() {
                    let letters = |b: u8| b.is_ascii_alphanumeric() || b"-_.[],=<>!~@/^:+".contains(&b);
                    let begins = |first: char| first.is_ascii_alphanumeric() || first == '@';
                    if !package.starts_with(begins) || !package.bytes().all(letters) {
                        return Err(format!("{package:?} is not a package name"));
                    }
                }
                Ok(value.split_whitespace().collect::<Vec<_>>().join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
description = "tools"
aliases = ["tools-v1"]
needs = ["nothing"]
image = "debian:12"
start = "serve"
ready = "true"
isolation = "namespaces"

[limits]
memory = 1073741824

[arguments.PACKAGES]
description = "packages"
kind = "packages"
default = """
one two<3
three
"""

[variants.small]
arguments.PACKAGES = "one"
template = "base"

[secrets]
TOKEN = { description = "a token" }
npmrc = { description = "settings", path = "/root/.npmrc" }

[[steps]]
run.script = "make.sh"
run.user = "root"

[[steps]]
copy.source = "tool"
copy.destination = "/usr/local/bin/tool"
copy.mode = "755"

[[steps]]
env = { A = "1", B = "2" }

[[steps]]
workdir = "/srv"

[[steps]]
user.name = "ada"
"#;

    fn parse(text: &str) -> Result<Recipe, Problem> {
        read("tools", text, &|name| match name {
            "make.sh" => Ok("make\n".into()),
            "tool" => Ok("#!/bin/sh\n".into()),
            other => Err(format!("{other}: No such file")),
        })
    }

    #[test]
    fn everything_that_can_be_said_is_understood() {
        let recipe = parse(WHOLE).unwrap();
        assert_eq!((recipe.base.clone(), recipe.start.as_deref()), (Base::Image("debian:12".into()), Some("serve")));
        assert_eq!((recipe.limits.memory, recipe.isolation), (Some(1 << 30), Some(Isolation::Namespaces)));
        assert_eq!(recipe.arguments["PACKAGES"].default, "one two<3 three");
        assert_eq!(recipe.variants["small"].base, Some(Base::Template("base".into())));
        let Act::Run { command, user, secrets } = &recipe.steps[0] else { panic!("{:?}", recipe.steps[0]) };
        assert_eq!((command.as_str(), user.as_deref()), ("make\n", Some("root")));
        let mounted: Vec<_> = secrets.iter().map(|one| (one.variable.as_deref(), one.path.as_deref())).collect();
        assert_eq!(mounted, [(Some("TOKEN"), None), (None, Some("/root/.npmrc"))]);
        assert!(matches!(&recipe.steps[1], Act::File { mode: Some(0o755), content, .. } if content.starts_with("#!")));
        assert!(matches!(&recipe.steps[4], Act::User { name, sudo: false } if name == "ada"));
        assert!(!recipe.until_built && recipe.text == WHOLE);
        // What is not said has a default.
        let least = parse("description = \"d\"\n[[steps]]\nrun.command = \"true\"\n").unwrap();
        assert_eq!(least.base, Base::Template("base".into()));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let least = "description = \"d\"\n[[steps]]\nrun.command = \"true\"\n";
        for (text, line, part) in [
            ("description = 1\n".to_owned(), 1, "invalid type"),
            ("description = \"d\"\nnonsense = \n".to_owned(), 2, ""),
            (format!("stpes = 1\n{least}"), 1, "unknown field `stpes`"),
            (format!("{least}run.comand = \"x\"\n"), 4, "unknown field `comand`"),
            (format!("{least}[[steps]]\nrunn.command = \"x\"\n"), 5, "unknown field `runn`"),
            (format!("{least}[limits]\nmemori = 1\n"), 5, "unknown field `memori`"),
            (format!("{least}[arguments.A]\ndescription = \"a\"\nkid = \"word\"\n"), 6, "unknown field `kid`"),
            (format!("{least}[arguments.A]\ndescription = \"a\"\nkind = \"many\"\n"), 6, "unknown variant `many`"),
            (format!("until_built = \"node\"\n{least}"), 1, "until_built"),
            (format!("aliases = [\"a\", \"B C\"]\n{least}"), 1, "a name has"),
            (format!("template = \"a\"\nimage = \"b\"\n{least}"), 2, "exclude each other"),
            (format!("isolation = \"prison\"\n{least}"), 1, "unknown variant `prison`"),
        ] {
            let problem = parse(&text).unwrap_err();
            assert_eq!(problem.line, Some(line), "{text}: {problem}");
            assert!(problem.message.contains(part), "{text}: {problem}");
            assert!(!problem.message.contains('\n'), "{problem}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let least = "description = \"d\"\n[[steps]]\nrun.command = \"true\"\n";
        for (text, part) in [
            ("description = \"d\"\n".to_owned(), "at least one"),
            ("[[steps]]\nrun.command = \"true\"\n".to_owned(), "missing field `description`"),
            (format!("{least}env.A = \"1\"\n"), "exactly one of"),
            (format!("{least}[[steps]]\n"), "exactly one of"),
            (format!("{least}run.script = \"make.sh\"\n"), "either command or script"),
            (format!("{least}[[steps]]\nrun.user = \"root\"\n"), "either command or script"),
            (format!("{least}[[steps]]\nrun.script = \"../make.sh\"\n"), "no name of a file"),
            (format!("{least}[[steps]]\nrun.script = \"other.sh\"\n"), "No such file"),
            (format!("{least}[[steps]]\ncopy = {{ source = \"tool\", destination = \"bin\" }}\n"), "absolute path"),
            (
                format!("{least}[[steps]]\ncopy = {{ source = \"tool\", destination = \"/b\", mode = \"9\" }}\n"),
                "octal",
            ),
            (format!("{least}[[steps]]\nuser.name = \"a:0\"\n"), "user"),
            (format!("{least}[secrets]\n\"a-b\" = {{ description = \"x\" }}\n"), "for a file, set path"),
            (
                format!("{least}[arguments.A]\ndescription = \"a\"\n[secrets.A]\ndescription = \"a\"\n"),
                "an argument as well",
            ),
            (format!("{least}[variants.v]\narguments.A = \"x\"\n"), "no [arguments.A]"),
            (
                format!(
                    "{least}[arguments.A]\ndescription = \"a\"\nkind = \"packages\"\ndefault = \"--index-url x\"\n"
                ),
                "not a package name",
            ),
        ] {
            let problem = parse(&text).unwrap_err();
            assert!(problem.message.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn a_value_is_never_a_flag_or_a_piece_of_a_script() {
        for package in ["polars", "polars==1.0", "uvicorn[standard]", "@scope/name@^1.2", "pkg>=1,<2"] {
            assert!(Kind::Packages.judge(package).is_ok(), "{package}");
        }
        for package in ["-r x", "a;b", "a$(id)", "a b|c", "`id`", "'a'", "--pre", "a\u{e9}"] {
            assert!(Kind::Packages.judge(package).is_err(), "{package}");
        }
        assert!(
            Kind::Word.judge("22.1").is_ok() && Kind::Word.judge("22 1").is_err() && Kind::Word.judge("-x").is_err()
        );
        assert!(Kind::Line.judge("any 'text'").is_ok() && Kind::Line.judge("two\nlines").is_err());
    }
}
