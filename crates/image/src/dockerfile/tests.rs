//! Dockerfiles as people write them, and what becomes of each line.

use proptest::prelude::*;

use super::*;
use crate::config::Defaults;

fn parsed(text: &str) -> Dockerfile {
    Dockerfile::parse(text).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

fn planned(text: &str) -> Plan {
    parsed(text).plan(&Order::default()).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

fn with(arguments: &[(&str, &str)]) -> Order {
    let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Order { arguments, ..Order::default() }
}

/// What the only stage asks for, begun with these variables.
fn actions_of(plan: &Plan, env: &[(&str, &str)]) -> (Vec<Action>, Defaults) {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut context = Context::new(plan, 0, Defaults { env, ..Defaults::default() });
    let actions =
        plan.stages[0].steps.iter().map(|step| context.step(step).unwrap_or_else(|problem| panic!("{problem}")));
    let actions = actions.filter(|action| *action != Action::Noted).collect();
    (actions, context.into_defaults())
}

fn actions(text: &str) -> Vec<Action> {
    actions_of(&planned(text), &[]).0
}

fn defaults(text: &str) -> Defaults {
    actions_of(&planned(text), &[("PATH", "/bin")]).1
}

/// The words of all commands.
fn commands(text: &str) -> Vec<Vec<String>> {
    let words = |action| match action {
        Action::Run(Run { command: Command::Exec(words), .. }) => Some(words),
        Action::Run(Run { command: Command::Script(text), .. }) => Some(vec!["script".to_owned(), text]),
        _ => None,
    };
    actions(text).into_iter().filter_map(words).collect()
}

fn shell(text: &str) -> Vec<String> {
    vec!["/bin/sh".to_owned(), "-c".to_owned(), text.to_owned()]
}

fn transfer(text: &str) -> Transfer {
    match actions(&format!("FROM x\n{text}")).pop() {
        Some(Action::Copy(transfer)) => transfer,
        other => panic!("{other:?}"),
    }
}

/// What is wrong, wherever it shows: when it is read, planned or carried out.
fn problem(text: &str) -> Problem {
    let plan = match Dockerfile::parse(text).and_then(|file| file.plan(&Order::default())) {
        Ok(plan) => plan,
        Err(problem) => return problem,
    };
    for (number, stage) in plan.stages.iter().enumerate() {
        let mut context = Context::new(&plan, number, Defaults::default());
        for step in &stage.steps {
            if let Err(problem) = context.step(step) {
                return problem;
            }
        }
    }
    panic!("nothing is wrong with {text}");
}

#[test]
fn continued_lines_lose_their_comments() {
    let text =
        "FROM x\nRUN apt-get update \\\n# why\n   # again\n\n  && apt-get install -y \\  \n  curl\nRUN a\\\\\nRUN b";
    let expected = [shell("apt-get update   && apt-get install -y   curl"), shell("a\\\\"), shell("b")];
    assert_eq!(commands(text), expected);
    assert_eq!(parsed(text).steps()[1].lines, (2, 7));
    assert_eq!(commands("FROM x\r\nRUN a \\\r\n  b\r\n"), [shell("a   b")]);
    assert_eq!(commands("FROM x\nRUN a \\"), [shell("a")], "at the end of the file");
    assert_eq!(commands("\u{feff}from x\nrun a"), [shell("a")], "in small letters, after a mark");
}

#[test]
fn the_escape_character_can_be_another() {
    assert_eq!(
        commands("# syntax=a/b:1\n# escape=`\nFROM x\nRUN a `\n  b\nRUN dir c:\\\n"),
        [shell("a   b"), shell("dir c:\\")]
    );
    assert_eq!(problem("# escape=x\nFROM x").line, 1);
    // After an instruction it is a comment.
    assert_eq!(commands("FROM x\n# escape=`\nRUN a \\\n b"), [shell("a  b")]);
}

#[test]
fn commands_have_both_forms() {
    let text = r#"FROM x
RUN ["echo", "$HOME", "a b"]
RUN ["not json]
RUN echo $HOME "a b"
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN a | b
RUN "a" "b"
"#;
    let bash = |text: &str| ["/bin/bash", "-o", "pipefail", "-c", text].map(str::to_owned).to_vec();
    let expected = [
        vec!["echo".to_owned(), "$HOME".to_owned(), "a b".to_owned()],
        shell("[\"not json]"),
        shell("echo $HOME \"a b\""),
        bash("a | b"),
        bash("\"a\" \"b\""),
    ];
    assert_eq!(commands(text), expected);
}

#[test]
fn heredocs_stand_anywhere_in_a_command() {
    let text = "FROM x\nRUN <<EOF\necho one\n# no comment \\\nEOF\nRUN cat <<EOF > /x\n$A\n\tb\nEOF\nRUN python3 <<'PY' && cat <<-\"END\"\nprint(1)\nPY\n\ttabs\n\tEND\nRUN <<EOF\n#!/usr/bin/env python3\nprint(2)\nEOF\nRUN <<-EOF\n\techo tabs\n\tEOF\nRUN after";
    let expected = [
        shell("echo one\n# no comment \\\n"),
        shell("cat <<EOF > /x\n$A\n\tb\nEOF"),
        shell("python3 <<'PY' && cat <<-\"END\"\nprint(1)\nPY\n\ttabs\nEND"),
        vec!["script".to_owned(), "#!/usr/bin/env python3\nprint(2)\n".to_owned()],
        shell("echo tabs\n"),
        shell("after"),
    ];
    assert_eq!(commands(text), expected);
    assert_eq!(parsed(text).steps()[1].lines, (2, 5));
    assert_eq!(commands("FROM x\nRUN cat <<EOF>/x\na\nEOF\nRUN b"), [shell("cat <<EOF>/x\na\nEOF"), shell("b")]);
    // What only looks like one.
    let shifts = "FROM x\nRUN echo $((1<<2)) $(( 1 << 2 )) \"<<EOF\" \\<<EOF <<<EOF\nRUN b";
    assert_eq!(commands(shifts).len(), 2);
    let open = problem("FROM x\nRUN cat <<EOF\nnever closed\n");
    assert_eq!((open.line, open.message.as_str()), (2, "the heredoc EOF is not closed"));
    assert!(open.remedy.unwrap().contains("EOF"));
}

#[test]
fn files_are_copied_in_every_form() {
    let plain = transfer("COPY a b/ c\\ d \"e f\" /dest/");
    assert_eq!(plain.paths, ["a", "b", "c d", "e f"]);
    assert_eq!((plain.destination.as_str(), plain.into_directory, plain.source), ("/dest", true, Source::Context));
    let json = transfer(r#"COPY ["a b", "/c d"]"#);
    assert_eq!((json.paths, json.destination, json.into_directory), (vec!["a b".to_owned()], "/c d".to_owned(), false));
    let flags = transfer(
        "ARG U=app\nCOPY --chown=$U:app --chmod=0755 --link --exclude=*.md --from=some/image:1 /etc/passwd ./",
    );
    assert_eq!((flags.owner.as_deref(), flags.mode), (Some("app:app"), Some(0o755)));
    assert_eq!((flags.source, flags.paths), (Source::Image("some/image:1".into()), vec!["etc/passwd".to_owned()]));
    assert_eq!(flags.exclude, ["*.md"]);
    assert_eq!(transfer("WORKDIR /app\nWORKDIR src\nCOPY . .").destination, "/app/src");
    assert_eq!(transfer("COPY ../../etc/shadow x").paths, ["etc/shadow"], "the context is the top");
    assert_eq!(transfer("COPY . /x").paths, [""]);
    assert_eq!(transfer("COPY home/user/app/req.txt /.requirements.txt").paths, ["home/user/app/req.txt"]);
    assert_eq!(transfer("ADD app.tar.gz /").kind, Kind::Add);
}

#[test]
fn files_can_be_in_the_dockerfile_itself() {
    let inline = transfer("ENV A=apple\nCOPY <<one.txt <<-'two' /d/\n$A ${B:-b} \\$A 'q'\none.txt\n\t$A\ntwo\n");
    let expected = [
        Inline { name: "one.txt".into(), content: "apple b $A 'q'\n".into() },
        Inline { name: "two".into(), content: "$A\n".into() },
    ];
    assert_eq!(inline.inline, expected);
    assert_eq!(inline.destination, "/d");
    let single = transfer("COPY --chmod=600 <<EOF /etc/app.conf\nx\nEOF");
    assert_eq!((single.destination.as_str(), single.into_directory, single.paths.len()), ("/etc/app.conf", false, 0));
}

#[test]
fn variables_follow_the_environment_of_the_image() {
    let plan = planned(
        "FROM x\nENV PATH=/opt/bin:$PATH A='v' B=\"a b\" C=c\\ d\nENV D=$A E=${NONE:-e}\nENV OLD the rest  of $A\nENV A=new D2=$A\nWORKDIR /$A\nUSER ${B%}",
    );
    let mut context =
        Context::new(&plan, 0, Defaults { env: vec![("PATH".into(), "/bin".into())], ..Defaults::default() });
    let steps = &plan.stages[0].steps;
    for step in &steps[..5] {
        context.step(step).unwrap();
    }
    let env: Vec<String> = context.defaults().env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let expected = ["PATH=/opt/bin:/bin", "A=new", "B=a b", "C=c d", "D=v", "E=e", "OLD=the rest  of v", "D2=v"];
    assert_eq!(env, expected);
    assert_eq!(context.defaults().workdir.as_deref(), Some("/new"));
    assert!(context.step(&steps[5]).unwrap_err().message.contains("unknown here"));
}

#[test]
fn arguments_come_from_the_build_the_stage_or_the_top() {
    let text = "ARG V=3.11\nARG TOP=top\nFROM python:${V}-slim\nARG V\nARG TOP=mine\nARG NONE\nARG TARGETARCH\nARG ENVED=arg\nENV ENVED=env\nRUN x";
    let file = parsed(text);
    let environment = |order: &Order| {
        let plan = file.plan(order).unwrap();
        let (actions, _) = actions_of(&plan, &[]);
        let Some(Action::Run(run)) = actions.last().cloned() else { panic!() };
        let mut environment: Vec<String> =
            run.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        environment.sort();
        (plan.stages[0].base.clone(), environment)
    };
    let arch = format!("TARGETARCH={}", crate::Platform::host().architecture);
    let (base, env) = environment(&Order::default());
    assert_eq!(base, Base::Image("python:3.11-slim".into()));
    assert_eq!(env, ["ENVED=env".to_owned(), arch.clone(), "TOP=mine".into(), "V=3.11".into()]);
    let (base, env) = environment(&with(&[("V", "3.12"), ("TOP", "given"), ("NONE", ""), ("ENVED", "given")]));
    assert_eq!(base, Base::Image("python:3.12-slim".into()));
    assert_eq!(env, ["ENVED=env".to_owned(), "NONE=".into(), arch, "TOP=given".into(), "V=3.12".into()]);
    assert_eq!(file.plan(&with(&[("OTHER", "x"), ("V", "y")])).unwrap().unused, ["OTHER"]);
    // Not seen by stages that do not ask for it.
    assert_eq!(commands("ARG A=b\nFROM x\nRUN $A"), [shell("$A")]);
    assert_eq!(transfer("COPY a$A b").paths, ["a"]);
    assert!(problem("ARG A\nFROM $A\nRUN x").message.contains("is empty"));
}

#[test]
fn only_the_stages_that_are_needed_are_built() {
    let text = "FROM a AS Base\nRUN 1\nFROM b AS unused\nFROM base AS tools\nFROM scratch\nCOPY --from=tools /x /x\nCOPY --from=0 /y /y\nCOPY --from=busybox:1 /z /z\nFROM unused AS last";
    let file = parsed(text);
    let plan = file.plan(&Order { target: Some("3".into()), ..Order::default() }).unwrap();
    assert_eq!(plan.needed, [0, 2, 3]);
    assert_eq!(plan.images(), ["a", "b", "busybox:1"], "as they are named");
    assert_eq!(plan.stages[2].base, Base::Stage(0));
    assert_eq!(plan.stages[3].base, Base::Scratch);
    let mut context = Context::new(&plan, 3, Defaults::default());
    let sources: Vec<Source> = plan.stages[3]
        .steps
        .iter()
        .map(|step| match context.step(step).unwrap() {
            Action::Copy(transfer) => transfer.source,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sources, [Source::Stage(2), Source::Stage(0), Source::Image("busybox:1".into())]);
    assert_eq!(file.plan(&Order::default()).unwrap().needed, [1, 4]);
    let missing = file.plan(&Order { target: Some("nope".into()), ..Order::default() }).unwrap_err();
    assert_eq!(missing.remedy.as_deref(), Some("there are: base, unused, tools, last"));
    assert!(problem("FROM a\nCOPY --from=later x y\nFROM b AS later").message.contains("does not come before"));
    assert!(problem("FROM a\nCOPY --from=0 x y").message.contains("does not come before"));
    assert!(problem("FROM a AS x\nFROM b AS X").message.contains("already there"));
}

#[test]
fn an_image_says_how_it_wants_to_be_run() {
    let text = "FROM x\nCMD [\"base\"]\nENTRYPOINT [\"/e\"]\nCMD a b\nEXPOSE 80 53/udp 8000-8002 80\nLABEL a=b \"c d\"='e f'\nVOLUME /data /more\nVOLUME [\"/json\"]\nSTOPSIGNAL SIGINT\nUSER app:app\nHEALTHCHECK --interval=5s CMD curl x\nHEALTHCHECK NONE\nONBUILD RUN make\nMAINTAINER me\nSHELL [\"/bin/bash\", \"-c\"]";
    let found = defaults(text);
    assert_eq!((found.entrypoint, found.command), (vec!["/e".to_owned()], shell("a b")));
    let ports: Vec<String> = found.ports.iter().map(|port| format!("{}/{}", port.number, port.protocol)).collect();
    assert_eq!(ports, ["80/tcp", "53/udp", "8000/tcp", "8001/tcp", "8002/tcp"]);
    assert_eq!(found.labels.into_iter().collect::<Vec<_>>(), [("a".into(), "b".into()), ("c d".into(), "e f".into())]);
    assert_eq!(found.volumes, ["/data", "/more", "/json"]);
    assert_eq!((found.stop_signal.as_deref(), found.user.as_deref()), (Some("SIGINT"), Some("app:app")));
    assert_eq!(found.on_build, ["RUN make"]);
    assert_eq!(found.shell, ["/bin/bash", "-c"]);
    // An entry point takes away the command of the image below, not the stage's own.
    let plan = planned("FROM x\nENTRYPOINT [\"/e\"]");
    let mut context = Context::new(&plan, 0, Defaults { command: vec!["below".into()], ..Defaults::default() });
    context.step(&plan.stages[0].steps[0]).unwrap();
    assert!(context.defaults().command.is_empty());
    assert_eq!(defaults("FROM x\nCMD [\"own\"]\nENTRYPOINT [\"/e\"]").command, ["own"]);
}

#[test]
fn steps_that_were_put_off_are_due_later() {
    let mut below = Defaults { on_build: vec!["COPY . /app".into(), "RUN make".into()], ..Defaults::default() };
    let steps = triggers(&mut below).unwrap();
    assert_eq!(steps.iter().map(|step| step.text.as_str()).collect::<Vec<_>>(), ["COPY . /app", "RUN make"]);
    assert!(below.on_build.is_empty());
    for hostile in ["FROM x", "ONBUILD RUN x", "NONSENSE x", "RUN <<EOF\nx"] {
        let error = triggers(&mut Defaults { on_build: vec![hostile.into()], ..Defaults::default() }).unwrap_err();
        assert!(error.message.starts_with("ONBUILD of the image below"), "{error}");
    }
    for wrong in ["ONBUILD FROM x", "ONBUILD ONBUILD RUN x", "ONBUILD NONSENSE", "ONBUILD RUN <<EOF\nx\nEOF"] {
        assert_eq!(problem(&format!("FROM x\n{wrong}")).line, 2);
    }
}

#[test]
fn mounts_are_there_or_refused_and_never_passed_over() {
    let text =
        "FROM x\nRUN --mount=type=secret,id=token --mount=type=cache,target=/root/.cache --network=none pip install";
    let Some(Action::Run(run)) = actions(text).pop() else { panic!() };
    assert_eq!(run.mounts.len(), 2);
    assert!(matches!(&run.mounts[0], Mount::Secret(secret) if secret.target.as_deref() == Some("/run/secrets/token")));
    assert_eq!(run.mounts[1], Mount::Cache { target: "/root/.cache".into() });
    assert_eq!((run.network, run.command), (Network::None, Command::Exec(shell("pip install"))));
    for (flag, why) in [
        ("--mount=type=bind,target=/x", "bind mounts are not supported"),
        ("--mount=type=ssh", "ssh mounts are not supported"),
        ("--mount", "no value"),
        ("--network=host", "a network of its own"),
        ("--security=insecure", "refused"),
        ("--device=x", "--device is not supported"),
    ] {
        let found = problem(&format!("FROM x\n\nRUN {flag} true"));
        assert!(found.message.contains(why), "{found}");
        assert_eq!(found.line, 3);
    }
}

#[test]
fn urls_are_fetched_only_where_that_is_allowed() {
    let text = "FROM x\nADD https://example.com/a.tar.gz /a.tar.gz";
    let refused = problem(text);
    assert!(refused.message.contains("fetches no URLs") && refused.remedy.unwrap().contains("RUN"));
    let plan = parsed(text).plan(&Order { urls: Urls::Allowed, ..Order::default() }).unwrap();
    let mut context = Context::new(&plan, 0, Defaults::default());
    let Action::Copy(transfer) = context.step(&plan.stages[0].steps[0]).unwrap() else { panic!() };
    assert_eq!(transfer.urls, ["https://example.com/a.tar.gz"]);
    assert!(problem("FROM x\nCOPY https://example.com/a /a").message.contains("cannot be copied"));
    for git in ["https://example.com/a.git#main", "git@example.com:a/b", "ssh://example.com/a"] {
        assert!(problem(&format!("FROM x\nADD {git} /a")).message.contains("clones no repositories"));
    }
}

#[test]
fn problems_name_the_line_and_the_remedy() {
    for (text, line, message) in [
        ("", 1, "it has no FROM"),
        ("# nothing", 1, "it has no FROM"),
        ("RUN x", 1, "RUN stands before FROM"),
        ("FROM x\n\n\nRUM echo", 4, "RUM is no instruction"),
        ("FROM x\nRUN a \\\n b\nNPM install", 4, "NPM is no instruction"),
        ("FROM", 1, "FROM: it has nothing after it"),
        ("FROM a b", 1, "FROM: it is not understood"),
        ("FROM a AS 1x", 1, "FROM: \"1x\" is no name for a stage"),
        ("FROM --platform=windows/amd64 a", 1, "FROM --platform=windows/amd64 cannot run here"),
        ("FROM x\nENV A", 2, "ENV: a value is missing"),
        ("FROM x\nENV A=1 B", 2, "ENV: \"B\" has no ="),
        ("FROM x\nARG 1A=x", 2, "ARG: \"1A\" is no name of a variable"),
        ("FROM x\nCOPY a", 2, "COPY: it needs a source and a destination"),
        ("FROM x\nCOPY a b c", 2, "COPY: several sources need a directory to go to"),
        ("FROM x\nCOPY --parents a b", 2, "COPY: --parents is not supported by this builder"),
        ("FROM x\nCOPY --chmod=u+x a b", 2, "COPY: --chmod=u+x is no mode"),
        ("FROM x\nADD --from=y a b", 2, "ADD: --from is not supported by this builder"),
        ("FROM x\nADD --checksum=sha256:x a b", 2, "ADD: --checksum is not supported by this builder"),
        ("FROM x\nSHELL /bin/sh", 2, "SHELL: it needs a list"),
        ("FROM x\nCMD [1]", 2, "its list has something other than strings"),
        ("FROM x\nRUN []", 2, "RUN: its list is empty"),
        ("FROM x\nEXPOSE 99999", 2, "EXPOSE: \"99999\" is no port"),
        ("FROM x\nEXPOSE 9-8", 2, "EXPOSE: \"9-8\" is no port"),
        ("FROM x\nEXPOSE 1-65535", 2, "EXPOSE: more than 1024 ports"),
        ("FROM x\nHEALTHCHECK curl", 2, "HEALTHCHECK: it is not understood"),
        ("FROM x\nUSER $NONE", 2, "USER: \"\" is no user"),
        ("FROM x\nWORKDIR 'a", 2, "a single quote (') is not closed"),
        ("FROM x\nCOPY --from=$x a b", 2, "COPY --from=$x: a variable cannot stand here"),
        ("FROM x\nRUN a\0b", 2, "it has a zero byte in it"),
    ] {
        let found = problem(text);
        assert_eq!((found.line, found.message.as_str()), (line, message), "{text}");
    }
    assert_eq!(problem("FROM x\nRUM echo").to_string(), "Dockerfile line 2: RUM is no instruction; did you mean RUN?");
}

#[test]
fn two_steps_that_differ_have_different_words() {
    let texts = [
        "RUN a b",
        "RUN [\"a b\"]",
        "RUN [\"a\", \"b\"]",
        "RUN <<EOF\n#!/bin/a\nEOF",
        "ENV A=b\nRUN a b",
        "ENV A=c\nRUN a b",
        "ARG A=b\nARG C\nRUN a b",
        "USER u\nRUN a b",
        "WORKDIR /w\nRUN a b",
        "RUN --network=none a b",
        "RUN --mount=type=secret,id=a a b",
        "RUN --mount=type=secret,id=b a b",
        "COPY a b",
        "COPY a b/",
        "COPY a a b/",
        "ADD a b",
        "COPY --chown=u a b",
        "COPY --chmod=700 a b",
        "COPY --from=img a b",
        "COPY --exclude=x a b",
        "WORKDIR /w\nCOPY a b",
        "COPY <<a b\none\na",
        "COPY <<a b\ntwo\na",
    ];
    let words: Vec<_> = texts.iter().map(|text| actions(&format!("FROM x\n{text}")).pop().unwrap().words()).collect();
    for (number, one) in words.iter().enumerate() {
        for (other, another) in words.iter().enumerate().skip(number + 1) {
            // The same variable from either place is the same to a command.
            let is_same = (texts[number], texts[other]) == ("ENV A=b\nRUN a b", "ARG A=b\nARG C\nRUN a b");
            assert_eq!(one == another, is_same, "{} and {}", texts[number], texts[other]);
        }
    }
}

#[test]
fn a_dockerfile_cannot_grow_without_end() {
    let doubling = format!("FROM x\nENV A=0123456789\n{}", "ENV A=$A$A$A$A\n".repeat(20));
    assert!(problem(&doubling).message.contains("longer than"));
    assert!(Dockerfile::parse(&"#".repeat(LARGEST + 1)).is_err());
    assert!(problem(&format!("FROM x\n{}", "RUN x\n".repeat(10_001))).message.contains("instructions"));
    let copies = format!(
        "FROM x\nENV A={}\n{}",
        "x".repeat(60_000),
        (0..40).map(|number| format!("ENV B{number}=$A\n")).collect::<String>()
    );
    assert!(problem(&copies).message.contains("all variables together"));
}

#[test]
fn a_line_that_names_a_long_value_often_is_refused_before_it_is_large() {
    let long = format!("FROM x\nENV X={}\n", "x".repeat(100_000));
    let often =
        |begin: &str, each: &str, end: &str| format!("{long}{begin} {}{end}\n", format!("{each} ").repeat(1000));
    // Each would take 100 MB.
    for text in [
        often("COPY", "$X", "/x/"),
        often("COPY", "--exclude=$X", "a /x/"),
        often("RUN", "--mount=type=cache,target=/$X", "true"),
        format!("{long}ENV {}\n", (0..1000).map(|number| format!("v{number}=$X ")).collect::<String>()),
        format!("{long}LABEL {}\n", (0..1000).map(|number| format!("v{number}=$X ")).collect::<String>()),
    ] {
        let message = problem(&text).message;
        assert!(message.contains("larger than"), "{message}: {}", &text[100_010..100_060]);
    }
    let globals = (0..1000).map(|number| format!("v{number}=$X ")).collect::<String>();
    let globals = format!("ARG X={}\nARG {globals}\nFROM x\n", "x".repeat(100_000));
    assert!(problem(&globals).message.contains("larger than"));
    // Named and not used: nothing is copied.
    let unused = format!("{long}ENV Y={}\n", "${X:+}".repeat(100_000));
    assert!(defaults(&unused).env.contains(&("Y".to_owned(), String::new())));
}

#[test]
fn there_are_only_so_many_variables_arguments_and_labels() {
    let many = |word: &str| (0..1025).map(|number| format!("{word}{number}=1 ")).collect::<String>();
    for (instruction, what) in [("ENV", "variables"), ("ARG", "arguments"), ("LABEL", "labels")] {
        let message = problem(&format!("FROM x\n{instruction} {}\n", many("v"))).message;
        assert!(message.contains(&format!("more than 1024 {what}")), "{message}");
    }
    let lines: String = (0..1025).map(|number| format!("ENV v{number}=1\n")).collect();
    assert!(problem(&format!("FROM x\n{lines}")).message.contains("more than 1024 variables"));
    assert!(problem(&format!("ARG {}\nFROM x\n", many("v"))).message.contains("more than 1024 arguments"));
}

#[test]
fn flags_take_as_long_as_the_line_has_letters() {
    // With the rest of the line read anew for each flag, this took hours.
    let flags = format!("FROM x\nRUN {}true\n", "--a ".repeat(250_000));
    assert!(problem(&flags).message.contains("--a is not supported"));
    let steps = vec![format!("RUN {}true", "--a ".repeat(250_000))];
    assert!(triggers(&mut Defaults { on_build: steps, ..Defaults::default() }).is_err());
    let long = vec!["RUN x".repeat(LARGEST / 4)];
    let error = triggers(&mut Defaults { on_build: long, ..Defaults::default() }).unwrap_err();
    assert!(error.message.contains("ONBUILD of the image below"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_a_plan_or_a_problem(text in "(FROM x\n)?((RUN|COPY|ENV|ARG|FROM|ADD|ONBUILD|EXPOSE|WORKDIR|#) ?[a-zA-Z0-9$\\{}:=<'\"\\\\ \n,.\\[\\]/-]{0,30}\n){0,6}") {
        if let Ok(plan) = Dockerfile::parse(&text).and_then(|file| file.plan(&Order::default())) {
            for (number, stage) in plan.stages.iter().enumerate() {
                let mut context = Context::new(&plan, number, Defaults::default());
                for step in &stage.steps {
                    let _ = context.step(step);
                }
            }
        }
    }
}
