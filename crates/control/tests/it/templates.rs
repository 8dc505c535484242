//! Templates and builds: made, built step by step, remembered, cancelled, taken up again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_control::build::{
    Act, Base, Build, Confidential, Credentials, Habits, Level, NewStep, Recipe, Request, SecretMount, State,
};
use cove_control::image::source::Config;
use cove_control::key::Scope;
use cove_control::sandbox::exec::run_to_end;
use cove_control::sandbox::{Filter, LimitsChange, NewSandbox, Page, Sandbox};
use cove_control::store::templates::TemplateFilter;
use cove_control::template::{NewTemplate, Record, TemplateChange, Visibility};
use cove_control::{Caller, Error};
use cove_protocol::process::{Command, Spec};

use crate::harness::{TestApp, eventually};
use crate::shelf::{Item, Shelf};

pub struct Workbench {
    pub t: TestApp,
    pub shelf: Arc<Shelf>,
}

impl Workbench {
    pub async fn new() -> Workbench {
        Workbench::on(TestApp::new().await)
    }

    pub fn on(t: TestApp) -> Workbench {
        let shelf = Arc::new(Shelf::default());
        let users = "root:x:0:0::/root:/bin/sh\n";
        shelf.put("debian:12", Item { files: vec![("/etc/passwd", users), ("/bin/bash", "")], ..Item::default() });
        t.app.builds().set_source(shelf.clone());
        Workbench { t, shelf }
    }

    pub async fn template(&self, name: &str) -> (Record, Build) {
        let new = NewTemplate { name: name.into(), ..NewTemplate::default() };
        self.t.app.create_template(&self.t.caller, new).await.unwrap()
    }

    pub async fn start(&self, build: &Build, request: Request) -> Result<Build, Error> {
        let app = &self.t.app;
        app.start_build(&self.t.caller, &build.template, &build.id, request, Confidential::default()).await
    }

    pub async fn ended(&self, build: &Build) -> Build {
        let id = build.id.clone();
        eventually("the build ends", || async {
            self.t.app.store().build(&id).await.unwrap().unwrap().state.is_final()
        })
        .await;
        self.t.app.store().build(&build.id).await.unwrap().unwrap()
    }

    pub async fn built(&self, name: &str, request: Request) -> Build {
        let (_, build) = self.template(name).await;
        self.start(&build, request).await.unwrap();
        self.ended(&build).await
    }

    async fn log(&self, build: &Build) -> Vec<String> {
        let lines = self.t.app.store().build_logs(&build.id, Level::Debug, 0, 1000).await.unwrap();
        lines.into_iter().map(|line| line.message).collect()
    }

    pub async fn sandbox(&self, template: &str) -> Sandbox {
        let new = NewSandbox { template: Some(template.into()), ..NewSandbox::default() };
        self.t.app.create_sandbox(&self.t.caller, new).await.unwrap()
    }

    /// What a command prints in a sandbox.
    pub async fn output(&self, sandbox: &Sandbox, command: &str) -> String {
        let (_, guest) = self.t.app.reach(&self.t.caller, sandbox.id.as_str()).await.unwrap();
        let output = run_to_end(&guest, Spec::new(Command::Shell(command.into())), None).await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

pub fn run(command: &str) -> NewStep {
    NewStep { act: Act::Run { command: command.into(), user: None, secrets: Vec::new() }, force: false }
}

fn env(name: &str, value: &str) -> NewStep {
    NewStep { act: Act::Env { values: vec![(name.into(), value.into())] }, force: false }
}

pub fn steps(steps: Vec<NewStep>) -> Request {
    Request {
        recipe: Recipe::Steps { base: Base::Image("debian:12".into()), steps },
        start: None,
        ready: None,
        force: false,
        habits: Habits::OfE2b,
        is_confidential: false,
        allow: Vec::new(),
    }
}

async fn stranger(t: &TestApp) -> Caller {
    t.app.create_organisation(&t.caller, "stranger", "stranger").await.unwrap();
    Caller { organisation: "stranger".into(), key: "k".into(), scopes: vec![Scope::Admin] }
}

#[tokio::test]
async fn a_template_is_built_of_steps_and_its_sandboxes_have_what_they_did() {
    let w = Workbench::new().await;
    let request = steps(vec![
        run("echo hello > /opt/a"),
        env("GREETING", "hi"),
        env("TWICE", "$GREETING-${GREETING}"),
        NewStep { act: Act::Workdir { path: "/app".into() }, force: false },
        NewStep { act: Act::User { name: "ada".into(), sudo: true }, force: false },
        run("cat /opt/a"),
    ]);
    let (record, build) = w.template("Tools:v1").await;
    assert_eq!((record.title(), build.state, build.tags.as_slice()), ("tools", State::Waiting, &["v1".to_owned()][..]));
    let started = w.start(&build, request).await.unwrap();
    assert_eq!(started.state, State::Building, "answered before anything is pulled");
    let done = w.ended(&build).await;
    assert_eq!((done.state, done.failure.clone()), (State::Ready, None));
    let log = w.log(&build).await;
    assert!(log.iter().any(|line| line == "hello"), "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("[builder 1/6] RUN echo hello > /opt/a [")), "{log:?}");

    let made = w.sandbox("tools:v1").await;
    assert_eq!((made.build.as_deref(), made.user.as_str()), (Some(build.id.as_str()), "ada"));
    assert_eq!((made.cwd.as_deref(), made.env["TWICE"].as_str()), (Some("/app"), "hi-hi"));
    assert_eq!(w.output(&made, "cat /opt/a").await, "hello\n");
    let users = w.output(&made, "cat /etc/passwd").await;
    assert!(users.contains("user:x:1000:") && users.contains("ada:x:1001:"), "{users}");
    assert!(w.output(&made, "cat /etc/sudoers.d/cove-ada").await.contains("NOPASSWD"));
    // By id, by build, by the organisation's name for it.
    for name in [format!("{}:v1", record.id), format!("tools:{}", build.id), "default/tools:v1".into()] {
        assert_eq!(w.t.app.template(&w.t.caller, &name).await.unwrap().build, Some(build.id.clone()), "{name}");
    }
    assert!(matches!(w.t.app.template(&w.t.caller, "tools").await, Err(Error::NotFound { .. })), "no such tag");
    // Whoever builds is in no list, and gone.
    let all = w.t.app.list_sandboxes(&w.t.caller, &Filter::default(), &Page::default()).await.unwrap().items;
    assert_eq!(all.iter().map(|sandbox| &sandbox.id).collect::<Vec<_>>(), [&made.id]);
    eventually("the build's sandbox is gone", || async { w.t.fake.ids().len() == 1 }).await;
}

#[tokio::test]
async fn what_was_done_before_is_not_done_again() {
    let w = Workbench::new().await;
    let request = || steps(vec![run("echo one > /one"), env("A", "1"), run("echo two > /two")]);
    let first = w.built("a", request()).await;
    let layers = w.t.fake.layer_ids().len();
    let second = w.built("b", request()).await;
    assert_eq!((second.state, second.image.clone()), (State::Ready, first.image.clone()));
    assert_eq!(w.t.fake.layer_ids().len(), layers, "nothing was made");
    assert_eq!(w.shelf.fetched.load(Ordering::SeqCst), 1);
    let cached = w.log(&second).await.into_iter().filter(|line| line.starts_with("CACHED")).count();
    assert_eq!(cached, 3, "the user and two commands");
    // Another value before a command is another command.
    let third = w.built("c", steps(vec![run("echo one > /one"), env("A", "2"), run("echo two > /two")])).await;
    let log = w.log(&third).await;
    assert!(log.iter().any(|line| line.starts_with("CACHED [builder 1/3]")), "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("[builder 3/3]")), "{log:?}");
    // Forced is done anew, and remembered.
    let forced = Request { force: true, ..request() };
    let fourth = w.built("d", forced).await;
    assert_ne!(fourth.image, first.image);
    assert_eq!(w.built("e", request()).await.image, fourth.image);
    // Another organisation finds nothing of it.
    let other = stranger(&w.t).await;
    let new = NewTemplate { name: "a".into(), ..NewTemplate::default() };
    let (_, theirs) = w.t.app.create_template(&other, new).await.unwrap();
    w.t.app.start_build(&other, &theirs.template, &theirs.id, request(), Confidential::default()).await.unwrap();
    let theirs = w.ended(&theirs).await;
    assert_eq!(theirs.state, State::Ready);
    assert!(!w.log(&theirs).await.iter().any(|line| line.starts_with("CACHED")));
    // What the registry calls by the same name is another image now.
    w.shelf.put("debian:12", Item { files: vec![("/etc/passwd", ""), ("/new", "1")], ..Item::default() });
    w.t.clock.advance(Duration::from_secs(3600));
    let fifth = w.built("f", request()).await;
    assert!(!w.log(&fifth).await.iter().any(|line| line.starts_with("CACHED")));
}

#[tokio::test]
async fn steps_are_remembered_until_somebody_has_them_forgotten() {
    let w = Workbench::new().await;
    let app = &w.t.app;
    w.built("a", steps(vec![run("echo one > /one")])).await;
    eventually("the build's sandbox is gone", || async { w.t.fake.ids().is_empty() }).await;
    let made = w.t.fake.layer_ids().len();
    app.delete_template(&w.t.caller, "a").await.unwrap();
    w.t.clock.advance(Duration::from_secs(3600));
    app.sweep_layers().await.unwrap();
    assert_eq!(w.t.fake.layer_ids().len(), made, "the next build of the same steps finds them");
    assert!(app.forget_steps(&w.t.caller).await.unwrap() > 0);
    assert_eq!(app.forget_steps(&w.t.caller).await.unwrap(), 0);
    app.sweep_layers().await.unwrap();
    assert_eq!(w.t.fake.layer_ids(), [w.shelf.layer("debian:12")], "what a registry gave is the server's own");
}

#[tokio::test]
async fn the_same_step_of_two_builds_at_once_is_done_once() {
    let w = Workbench::new().await;
    let request = || steps(vec![run("sleep 0.2; echo done > /done")]);
    let (_, one) = w.template("one").await;
    let (_, two) = w.template("two").await;
    w.start(&one, request()).await.unwrap();
    w.start(&two, request()).await.unwrap();
    let (one, two) = (w.ended(&one).await, w.ended(&two).await);
    assert_eq!((one.state, two.state), (State::Ready, State::Ready));
    assert_eq!(one.image, two.image);
    let done = |log: Vec<String>| log.iter().filter(|line| line.starts_with("CACHED [builder 1/1]")).count();
    assert_eq!(done(w.log(&one).await) + done(w.log(&two).await), 1);
}

#[tokio::test]
async fn a_build_that_fails_names_the_step_and_leaves_nothing() {
    let w = Workbench::new().await;
    let failed = w.built("x", steps(vec![run("echo fine"), run("echo bad >&2; exit 3")])).await;
    let failure = failed.failure.unwrap();
    assert_eq!((failed.state, failure.step.as_deref()), (State::Error, Some("2")));
    assert_eq!(failure.message, "failed to run command 'echo bad >&2; exit 3': command failed: exit status 3");
    assert!(matches!(w.t.app.template(&w.t.caller, "x").await, Err(Error::NotFound { .. })));
    eventually("its sandbox is gone", || async { w.t.fake.ids().is_empty() }).await;

    let as_nobody = NewStep {
        act: Act::Run { command: "whoami".into(), user: Some("root123".into()), secrets: Vec::new() },
        force: false,
    };
    let failure = w.built("y", steps(vec![as_nobody])).await.failure.unwrap();
    assert_eq!(
        failure.message,
        "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    );
    let missing = Request {
        recipe: Recipe::Image { reference: "nowhere:1".into() },
        habits: Habits::OfTheImage,
        ..steps(Vec::new())
    };
    let failure = w.built("z", missing).await.failure.unwrap();
    assert_eq!(
        (failure.step.as_deref(), failure.message.as_str()),
        (Some("base"), "nowhere:1: there is no such image")
    );
    // A capture that does not work ends the build and nothing else.
    w.t.fake.fail_next("capture", cove_control::provider::ProviderError::Full("the disk is full".into()));
    let failed = w.built("w", steps(vec![run("echo 1 > /1")])).await;
    assert_eq!(failed.state, State::Error);
    assert_eq!(w.built("w", steps(vec![run("echo 1 > /1")])).await.state, State::Ready);
}

#[tokio::test]
async fn a_build_is_started_once_and_a_newer_one_of_its_tag_ends_it() {
    let w = Workbench::new().await;
    let (record, first) = w.template("same").await;
    let slow = || steps(vec![run("sleep 30")]);
    w.start(&first, slow()).await.unwrap();
    let again = w.start(&first, slow()).await;
    assert!(again.unwrap_err().to_string().contains("build is not in waiting state"));
    w.t.clock.advance(Duration::from_millis(1));
    let (same, second) = w.template("same").await;
    assert_eq!(same.id, record.id, "the name keeps its template");
    let (_, other) = w.template("same:beta").await;
    w.start(&other, slow()).await.unwrap();
    w.start(&second, steps(vec![run("echo 2 > /2")])).await.unwrap();
    let (first, second) = (w.ended(&first).await, w.ended(&second).await);
    assert_eq!((first.state, second.state), (State::Cancelled, State::Ready));
    assert_eq!(first.failure.unwrap().message, "The build was canceled because it was superseded by a newer one.");
    // That of another tag goes on until somebody cancels it, even in the middle of a command.
    assert_eq!(w.t.app.store().build(&other.id).await.unwrap().unwrap().state, State::Building);
    let cancelled = w.t.app.cancel_build(&w.t.caller, "same", &other.id).await.unwrap();
    assert_eq!(cancelled.state, State::Cancelled);
    eventually("nothing of the builds is left", || async { w.t.fake.ids().is_empty() }).await;
    assert_eq!(w.t.app.cancel_build(&w.t.caller, "same", &second.id).await.unwrap().state, State::Ready, "too late");
}

#[tokio::test]
async fn a_build_that_is_cancelled_while_its_sandbox_is_launched_leaves_nothing() {
    let w = Workbench::new().await;
    let mut launch = w.t.fake.hold_next("launch");
    let (_, build) = w.template("early").await;
    w.start(&build, steps(vec![run("echo 1 > /1")])).await.unwrap();
    launch.reached().await;
    assert_eq!(w.t.fake.ids().len(), 1);
    w.t.app.cancel_build(&w.t.caller, "early", &build.id).await.unwrap();
    launch.let_through();
    eventually("its sandbox is gone", || async { w.t.fake.ids().is_empty() }).await;
}

#[tokio::test]
async fn a_build_that_is_cancelled_while_it_unpacks_leaves_nothing_and_keeps_no_other_waiting() {
    let w = Workbench::new().await;
    let (app, image) = (&w.t.app, w.shelf.layer("debian:12"));
    let (reached, pass) = w.shelf.hold_next_fill();
    let (_, first) = w.template("first").await;
    w.start(&first, steps(vec![run("echo 1 > /1")])).await.unwrap();
    reached.await.unwrap();
    assert!(app.store().layer(image).await.unwrap().is_some());
    app.cancel_build(&w.t.caller, "first", &first.id).await.unwrap();
    // The thread that unpacks has not heard of it, and makes the layer now.
    pass.send(()).unwrap();
    eventually("the layer is gone", || async { app.store().layer(image).await.unwrap().is_none() }).await;
    assert!(w.t.fake.layer_ids().is_empty(), "and its files are too");

    // Another build of the same image begins where the first has not ended yet.
    let (reached, pass) = w.shelf.hold_next_fill();
    let (_, second) = w.template("second").await;
    w.start(&second, steps(vec![run("echo 1 > /1")])).await.unwrap();
    reached.await.unwrap();
    app.cancel_build(&w.t.caller, "second", &second.id).await.unwrap();
    let (_, third) = w.template("third").await;
    w.start(&third, steps(vec![run("echo 1 > /1")])).await.unwrap();
    pass.send(()).unwrap();
    assert_eq!(w.ended(&third).await.state, State::Ready);
    assert!(w.t.fake.layer_ids().contains(&image));
    w.sandbox("third").await;
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_goes_on_where_it_was() {
    let w = Workbench::new().await;
    let (_, build) = w.template("long").await;
    w.start(&build, steps(vec![run("echo one > /one"), run("sleep 1000")])).await.unwrap();
    eventually("the second step runs", || async {
        w.log(&build).await.iter().any(|line| line.starts_with("[builder 2/2]"))
    })
    .await;
    let Workbench { t, shelf } = w;
    let t = t.killed_and_restarted().await;
    t.app.builds().set_source(shelf.clone());
    t.app.take_up_jobs().await.unwrap();
    assert_eq!(t.app.store().build(&build.id).await.unwrap().unwrap().state, State::Building);
    // Where the dying server still had time to put the job off.
    t.clock.advance(Duration::from_secs(60));
    let w = Workbench { t, shelf };
    eventually("the first step is found done", || async {
        w.t.app.work().await.unwrap();
        w.log(&build).await.iter().any(|line| line.starts_with("CACHED [builder 1/2]"))
    })
    .await;
    w.t.app.cancel_build(&w.t.caller, "long", &build.id).await.unwrap();
}

#[tokio::test]
async fn secrets_and_credentials_are_in_no_layer_log_or_row() {
    let w = Workbench::new().await;
    w.shelf.put("private:1", Item { files: vec![("/etc/passwd", "")], password: Some("pull-me-1"), ..Item::default() });
    let (_, build) = w.template("secret").await;
    let with_secret = |command: &str, variable: Option<&str>| NewStep {
        act: Act::Run {
            command: command.into(),
            user: None,
            secrets: vec![SecretMount {
                name: "token".into(),
                path: None,
                variable: variable.map(Into::into),
                required: true,
            }],
        },
        force: false,
    };
    let request = Request {
        recipe: Recipe::Steps {
            base: Base::Image("private:1".into()),
            steps: vec![with_secret("cat /run/secrets/token", None), with_secret("printenv TOKEN", Some("TOKEN"))],
        },
        ..steps(Vec::new())
    };
    let confidential = Confidential {
        registry: Some(Credentials { username: "ada".into(), password: "pull-me-1".into() }),
        secrets: [("token".to_owned(), b"s3cret-value".to_vec())].into(),
    };
    let app = &w.t.app;
    app.start_build(&w.t.caller, "secret", &build.id, request.clone(), confidential).await.unwrap();
    let done = w.ended(&build).await;
    assert_eq!((done.state, done.failure), (State::Ready, None));
    let log = w.log(&build).await;
    assert_eq!(log.iter().filter(|line| *line == "***").count(), 2, "{log:?}");
    assert!(!log.iter().any(|line| line.contains("s3cret") || line.contains("pull-me")), "{log:?}");
    assert!(!w.t.fake.is_in_a_layer(b"s3cret-value"));
    let made = w.sandbox("secret").await;
    assert_eq!(w.output(&made, "cat /run/secrets/token").await, "");
    let folder = app.config().data.clone();
    for file in ["cove.db", "cove.db-wal"] {
        let bytes = std::fs::read(folder.join(file)).unwrap_or_default();
        for word in ["s3cret-value", "pull-me-1"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word.as_bytes()), "{word} is in {file}");
        }
    }
    // Without the secret a step that was never done does not run.
    let again = Request {
        recipe: Recipe::Steps {
            base: Base::Image("private:1".into()),
            steps: vec![with_secret("cat /run/secrets/token; echo again", None)],
        },
        ..request
    };
    let failure = w.built("secret", again).await.failure.unwrap();
    assert!(failure.message.contains("was not given"), "{}", failure.message);
}

#[tokio::test]
async fn files_that_are_sent_are_copied_to_where_they_belong() {
    let w = Workbench::new().await;
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in [("src/a.py", "print(1)"), ("src/deep/b.py", "print(2)"), ("req.txt", "numpy")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    let archive = archive.into_inner().unwrap();
    let hash = "ab".repeat(32);
    let copy = |source: &str, destination: &str| NewStep {
        act: Act::Copy {
            hash: hash.clone(),
            source: source.into(),
            destination: destination.into(),
            owner: None,
            mode: None,
        },
        force: false,
    };
    let request = || steps(vec![copy("src/*", "app"), copy("req.txt", "/opt/requirements.txt")]);
    assert!(!w.t.app.has_build_file(&w.t.caller, &hash).await.unwrap());
    let (_, build) = w.template("copied").await;
    let early = w.start(&build, request()).await;
    assert!(matches!(early, Err(Error::Invalid { .. })), "{early:?}");
    assert!(w.t.app.put_build_file(&w.t.caller, "../../etc/passwd", &b""[..]).await.is_err());
    w.t.app.put_build_file(&w.t.caller, &hash, &archive[..]).await.unwrap();
    assert!(w.t.app.has_build_file(&w.t.caller, &hash).await.unwrap());
    let other = stranger(&w.t).await;
    assert!(!w.t.app.has_build_file(&other, &hash).await.unwrap(), "another organisation's does not exist");
    w.start(&build, request()).await.unwrap();
    let done = w.ended(&build).await;
    assert_eq!((done.state, done.failure), (State::Ready, None));
    let made = w.sandbox("copied").await;
    assert_eq!(w.output(&made, "cat /home/user/app/a.py").await, "print(1)");
    assert_eq!(w.output(&made, "cat /home/user/app/deep/b.py").await, "print(2)");
    assert_eq!(w.output(&made, "cat /opt/requirements.txt").await, "numpy");
    // The same files, sent again under another name, are the same step.
    let again = "cd".repeat(32);
    w.t.app.put_build_file(&w.t.caller, &again, &archive[..]).await.unwrap();
    let renamed = NewStep {
        act: Act::Copy { hash: again, source: "src/*".into(), destination: "app".into(), owner: None, mode: None },
        force: false,
    };
    let second = w.built("copied", steps(vec![renamed])).await;
    assert!(w.log(&second).await.iter().any(|line| line.starts_with("CACHED [builder 1/1]")));
    let nothing = w.built("nothing", steps(vec![copy("missing", "/x")])).await;
    assert!(nothing.failure.unwrap().message.contains("no such files"));
}

#[tokio::test]
async fn an_image_is_honoured_and_an_alias_leads_to_a_template() {
    let w = Workbench::new().await;
    let config = Config {
        env: [("PATH".to_owned(), "/bin".to_owned())].into(),
        user: Some("www".into()),
        workdir: Some("/srv".into()),
        entrypoint: vec!["/bin/serve".into()],
        command: vec!["--port".into(), "80".into()],
        ..Config::default()
    };
    w.shelf.put("web:1", Item { files: vec![("/srv/index", "x")], config, ..Item::default() });
    let image = |reference: &str| Request {
        recipe: Recipe::Image { reference: reference.into() },
        habits: Habits::OfTheImage,
        ..steps(Vec::new())
    };
    assert_eq!(w.built("web", image("web:1")).await.state, State::Ready);
    let web = w.t.app.template(&w.t.caller, "web").await.unwrap();
    assert_eq!((web.user.as_str(), web.cwd.as_deref()), ("www", Some("/srv")));
    assert_eq!((web.start.as_deref(), web.env["PATH"].as_str()), (Some("/bin/serve --port 80"), "/bin"));
    w.shelf.alias("ubuntu:22.04", "web");
    let built = w
        .built(
            "on-alias",
            Request {
                recipe: Recipe::Steps { base: Base::Image("ubuntu:22.04".into()), steps: vec![run("cat /srv/index")] },
                ..steps(Vec::new())
            },
        )
        .await;
    assert_eq!((built.state, built.parent_build, built.failure), (State::Ready, web.build, None));
    // An archive that was sent.
    let hash = "ef".repeat(32);
    w.t.app.put_build_file(&w.t.caller, &hash, &b"image of a test"[..]).await.unwrap();
    let archive = |hash: &str| Request {
        recipe: Recipe::Archive { hash: hash.into(), name: None },
        habits: Habits::OfTheImage,
        ..steps(Vec::new())
    };
    let archived = w.built("archived", archive(&hash)).await;
    assert_eq!((archived.state, archived.bytes > 0), (State::Ready, true));
    let made = w.sandbox("archived").await;
    assert_eq!((w.output(&made, "cat /srv/from-archive").await.as_str(), made.cwd.as_deref()), ("yes", Some("/srv")));
    w.t.app.put_build_file(&w.t.caller, &hash, &b"nonsense"[..]).await.unwrap();
    assert_eq!(w.built("broken", archive(&hash)).await.failure.unwrap().message, "not an image");
}

#[tokio::test]
async fn a_dockerfile_is_built_stage_by_stage() {
    let w = Workbench::new().await;
    let text = "FROM debian:12 AS made\nARG WORD=first\nENV KEPT=$WORD\nRUN echo built > /out/file\n\
        FROM debian:12 AS unused\nRUN exit 9\n\
        FROM debian:12\nWORKDIR /srv\nCOPY --from=made /out/file ./copied\nCOPY <<note /etc/note\nhello\nnote\n\
        CMD [\"serve\", \"--now\"]\n";
    let request = |text: &str| Request {
        recipe: Recipe::Dockerfile {
            text: text.into(),
            contexts: Vec::new(),
            target: None,
            arguments: Default::default(),
        },
        habits: Habits::OfTheImage,
        ..steps(Vec::new())
    };
    let built = w.built("docked", request(text)).await;
    assert_eq!((built.state, built.failure.clone()), (State::Ready, None), "{:?}", w.log(&built).await);
    let made = w.sandbox("docked").await;
    assert_eq!(w.output(&made, "cat /srv/copied").await, "built\n");
    assert_eq!(w.output(&made, "cat /etc/note").await, "hello\n");
    assert_eq!((made.cwd.as_deref(), made.env.get("KEPT")), (Some("/srv"), None), "another stage's variable");
    let template = w.t.app.template(&w.t.caller, "docked").await.unwrap();
    assert_eq!(template.start.as_deref(), Some("serve --now"));
    let log = w.log(&w.built("again", request(text)).await).await;
    let done = log.iter().filter(|line| line.starts_with('[') && line.contains("RUN")).count();
    assert_eq!(done, 0, "{log:?}");
    // What is wrong is named by its line, and where a step fails by its number.
    let failure = w.built("wrong", request("FROM debian:12\nNONSENSE\n")).await.failure.unwrap();
    assert!(failure.message.contains("line 2"), "{}", failure.message);
    let failure = w.built("fails", request("FROM debian:12\nENV A=1\nRUN exit 4\n")).await.failure.unwrap();
    assert_eq!((failure.step.as_deref(), failure.message.contains("exit status 4")), (Some("2"), true));
    let failure = w.built("lacks", request("FROM debian:12\nCOPY x /\n")).await.failure.unwrap();
    assert!(failure.message.contains("\"x\"") && failure.message.contains(".dockerignore"), "{}", failure.message);
}

#[tokio::test]
async fn a_dockerfile_begins_with_a_template_of_the_organisation() {
    let w = Workbench::new().await;
    let request = |text: &str| Request {
        recipe: Recipe::Dockerfile {
            text: text.into(),
            contexts: Vec::new(),
            target: None,
            arguments: Default::default(),
        },
        habits: Habits::OfTheImage,
        ..steps(Vec::new())
    };
    w.built("tools", steps(vec![run("echo tools > /tools")])).await;
    for (name, from) in [("plain", "tools"), ("tagged", "tools:default"), ("spelled", "template:tools")] {
        let text = format!("FROM {from}\nRUN echo more > /more\nCOPY --from={from} /tools /copied\n");
        let built = w.built(name, request(&text)).await;
        assert_eq!((built.state, built.failure.clone()), (State::Ready, None), "{from}: {:?}", w.log(&built).await);
        let made = w.sandbox(name).await;
        assert_eq!(w.output(&made, "cat /tools").await, "tools\n", "{from}");
        assert_eq!(w.output(&made, "cat /copied").await, "tools\n", "{from}");
    }
    // What means nothing here is said.
    let unused = Request {
        recipe: Recipe::Dockerfile {
            text: "FROM tools\nVOLUME /data\nHEALTHCHECK CMD true\n".into(),
            contexts: Vec::new(),
            target: None,
            arguments: [("NOPE".to_owned(), "2".to_owned())].into(),
        },
        ..request("")
    };
    let log = w.log(&w.built("unheeded", unused).await).await;
    for part in ["VOLUME makes no volume", "HEALTHCHECK is not asked", "build argument NOPE is not used"] {
        assert!(log.iter().any(|line| line.contains(part)), "{part}: {log:?}");
    }
    assert_eq!(w.built("on-base", request("FROM base\nRUN echo 1 > /v\n")).await.failure, None);
    // A template that has the name of its own image is not built on itself.
    w.shelf.put("app", Item { files: vec![("/etc/passwd", ""), ("/image", "1")], ..Item::default() });
    for _ in 0..2 {
        w.t.clock.advance(Duration::from_secs(1));
        let built = w.built("app", request("FROM app\nRUN echo 1 > /v\n")).await;
        assert_eq!((built.failure, built.parent_build), (None, None));
    }
    // An image that is asked for as an image is one.
    let image =
        Request { recipe: Recipe::Steps { base: Base::Image("app".into()), steps: Vec::new() }, ..steps(Vec::new()) };
    assert_eq!(w.built("of-image", image).await.parent_build, None);
    let failure = w.built("wrong", request("FROM nowhere\nRUN true\n")).await.failure.unwrap();
    assert!(failure.message.contains("FROM template:NAME"), "{}", failure.message);
    let failure = w.built("missing", request("FROM template:nowhere\nRUN true\n")).await.failure.unwrap();
    assert!(failure.message.contains("template nowhere does not exist"), "{}", failure.message);
}

#[tokio::test]
async fn one_tag_or_one_build_goes_and_the_others_stay() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let first = w.built("t:v1", steps(vec![run("echo 1 > /v")])).await;
    w.t.clock.advance(Duration::from_secs(1));
    let second = w.built("t:v2", steps(vec![run("echo 2 > /v")])).await;
    app.assign_tags(caller, "t:v2", vec!["default".into()]).await.unwrap();
    let tags = || async {
        let mut tags: Vec<String> =
            app.template_tags(caller, "t").await.unwrap().1.into_iter().map(|tag| tag.tag).collect();
        tags.sort();
        tags
    };
    // What is not there takes nothing with it.
    for missing in ["t:nope".to_owned(), "t:6f3a1c1e-0000-4000-8000-00000000abcd".to_owned()] {
        assert!(matches!(app.delete_template(caller, &missing).await, Err(Error::NotFound { .. })), "{missing}");
    }
    assert_eq!(tags().await, ["default", "v1", "v2"]);
    // Another tag leads to the build: it stays.
    app.delete_template(caller, "t:v2").await.unwrap();
    assert_eq!(tags().await, ["default", "v1"]);
    assert_eq!(app.template(caller, "t").await.unwrap().build.as_ref(), Some(&second.id));
    // A sandbox was started from it: it stays, and does not go by its id either.
    let made = w.sandbox("t:v1").await;
    app.delete_template(caller, "t:v1").await.unwrap();
    let by_id = format!("t:{}", first.id);
    assert!(app.template(caller, "t:v1").await.is_err() && app.template(caller, &by_id).await.is_ok());
    assert!(matches!(app.delete_template(caller, &by_id).await, Err(Error::Conflict(_))));
    app.destroy(caller, made.id.as_str()).await.unwrap();
    app.delete_template(caller, &by_id).await.unwrap();
    assert!(app.store().build(&first.id).await.unwrap().is_none());
    // The last one takes the template along.
    app.delete_template(caller, "t:default").await.unwrap();
    assert!(matches!(app.template_record(caller, "t").await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_start_command_that_ends_well_is_ready_when_the_ready_command_says_so() {
    let w = Workbench::new().await;
    let never = Request { start: Some("true".into()), ready: Some("cat /tmp/never".into()), ..steps(Vec::new()) };
    let (_, build) = w.template("never").await;
    w.start(&build, never).await.unwrap();
    eventually("it is asked", || async { w.log(&build).await.iter().any(|line| line.contains("cat: ")) }).await;
    // Long enough for the start command to have ended.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(w.t.app.store().build(&build.id).await.unwrap().unwrap().state, State::Building);
    w.t.app.cancel_build(&w.t.caller, &build.template, &build.id).await.unwrap();
    let both = Request { start: Some("true".into()), ready: Some("true".into()), ..steps(Vec::new()) };
    assert_eq!(w.built("both", both).await.failure, None);
}

#[tokio::test]
async fn a_start_command_is_proved_at_the_build_and_runs_in_every_sandbox() {
    let w = Workbench::new().await;
    let request = Request {
        start: Some("echo up > /tmp/up; sleep 1000".into()),
        ready: Some("cat /tmp/up".into()),
        ..steps(Vec::new())
    };
    let built = w.built("served", request).await;
    assert_eq!((built.state, built.failure), (State::Ready, None));
    let made = w.sandbox("served").await;
    assert_eq!(w.output(&made, "cat /tmp/up").await, "up\n", "it was started, and waited for");
    let broken = Request { start: Some("exit 7".into()), ready: Some("false".into()), ..steps(Vec::new()) };
    let failure = w.built("broken", broken).await.failure.unwrap();
    assert_eq!((failure.step.as_deref(), failure.message.contains("exit status 7")), (Some("finalize"), true));
}

#[tokio::test]
async fn tags_are_set_and_removed_and_default_stays() {
    let w = Workbench::new().await;
    let first = w.built("t:v1", steps(vec![run("echo 1 > /v")])).await;
    w.t.clock.advance(Duration::from_secs(1));
    let second = w.built("t:v2", steps(vec![run("echo 2 > /v")])).await;
    let app = &w.t.app;
    let (tags, build) = app.assign_tags(&w.t.caller, "t:v1", vec!["Stable".into(), "default".into()]).await.unwrap();
    assert_eq!((tags, build.id.clone()), (vec!["stable".into(), "default".into()], first.id.clone()));
    assert_eq!(app.template(&w.t.caller, "t").await.unwrap().build, Some(first.id.clone()));
    app.assign_tags(&w.t.caller, &format!("t:{}", second.id), vec!["stable".into()]).await.unwrap();
    assert_eq!(app.template(&w.t.caller, "t:stable").await.unwrap().build, Some(second.id.clone()));
    for (target, tags) in
        [(":x", vec!["y"]), ("t:", vec!["y"]), ("t", vec![]), ("t", vec!["a b"]), ("t:none", vec!["y"])]
    {
        let tags = tags.into_iter().map(ToOwned::to_owned).collect();
        assert!(app.assign_tags(&w.t.caller, target, tags).await.is_err(), "{target}");
    }
    app.remove_tags(&w.t.caller, "t", vec!["stable".into()]).await.unwrap();
    assert!(app.template(&w.t.caller, "t:stable").await.is_err());
    assert!(app.remove_tags(&w.t.caller, "t", vec!["default".into()]).await.is_err());
    assert_eq!(app.template_tags(&w.t.caller, "t").await.unwrap().1.len(), 3);
}

#[tokio::test]
async fn a_template_is_its_owners_unless_it_is_public() {
    let w = Workbench::new().await;
    let built = w.built("mine", steps(vec![run("echo 1 > /v")])).await;
    let (app, other) = (&w.t.app, stranger(&w.t).await);
    let by_id = built.template.clone();
    for name in ["mine", "default/mine", by_id.as_str()] {
        assert!(matches!(app.template(&other, name).await, Err(Error::NotFound { .. })), "{name}");
        assert!(app.delete_template(&other, name).await.is_err());
        assert!(app.cancel_build(&other, name, &built.id).await.is_err());
        assert!(app.build(&other, name, &built.id).await.is_err());
    }
    let public = TemplateChange { visibility: Some(Visibility::Public), ..TemplateChange::default() };
    app.update_template(&w.t.caller, "mine", public).await.unwrap();
    assert_eq!(app.template(&other, "default/mine").await.unwrap().build, Some(built.id.clone()));
    assert!(matches!(app.template(&other, "mine").await, Err(Error::NotFound { .. })), "a name is the caller's own");
    assert!(app.delete_template(&other, "default/mine").await.is_err(), "and the owner alone changes it");
    // How it was built, and what was said meanwhile, is the owner's too.
    let everything = (Level::Debug, 0, 10);
    assert!(!app.build_status(&w.t.caller, "mine", &built.id, everything).await.unwrap().lines.is_empty());
    for name in ["default/mine", by_id.as_str()] {
        let seen = app.build_status(&other, name, &built.id, everything).await;
        assert!(matches!(seen, Err(Error::NotFound { .. })), "{seen:?}");
        assert!(matches!(app.build(&other, name, &built.id).await, Err(Error::NotFound { .. })), "{name}");
        assert!(matches!(app.template_builds(&other, name, None, 10).await, Err(Error::NotFound { .. })), "{name}");
    }
    let new = NewSandbox { template: Some(by_id.clone()), ..NewSandbox::default() };
    let theirs = app.create_sandbox(&other, new).await.unwrap();
    app.delete_template(&w.t.caller, "mine").await.unwrap();
    assert!(matches!(app.template(&other, &by_id).await, Err(Error::NotFound { .. })));
    assert_eq!(app.store().sandbox_by_id(&theirs.id).await.unwrap().unwrap().image, built.image, "it keeps its files");
    // Names of the installation are nobody's to take.
    let taken = NewTemplate { name: "base".into(), ..NewTemplate::default() };
    assert!(matches!(app.create_template(&w.t.caller, taken).await, Err(Error::Conflict(_))));
    let rename = TemplateChange { name: Some("code-interpreter-v1".into()), ..TemplateChange::default() };
    w.template("other").await;
    assert!(app.update_template(&w.t.caller, "other", rename).await.is_err());
}

#[tokio::test]
async fn renamed_listed_deactivated_and_deleted() {
    let w = Workbench::new().await;
    w.built("old", steps(vec![run("echo 1 > /v")])).await;
    w.template("waiting").await;
    let app = &w.t.app;
    let page = app.catalogue(&w.t.caller, &TemplateFilter::default(), None, 10).await.unwrap();
    let shown: Vec<(&str, bool)> =
        page.items.iter().map(|item| (item.record.title(), item.current.is_some())).collect();
    assert!(shown.contains(&("old", true)) && shown.contains(&("waiting", false)), "{shown:?}");
    let names: Vec<String> =
        app.list_templates(&w.t.caller).await.unwrap().into_iter().map(|template| template.name).collect();
    assert_eq!(names, ["base", "code-interpreter", "old"]);
    let change =
        TemplateChange { name: Some("new".into()), aliases: Some(vec!["Neu".into()]), ..TemplateChange::default() };
    assert_eq!(app.update_template(&w.t.caller, "old", change).await.unwrap().names, ["new", "neu"]);
    assert!(app.template(&w.t.caller, "old").await.is_err());
    assert_eq!(app.template(&w.t.caller, "neu").await.unwrap().name, "new");
    let off = TemplateChange { active: Some(false), ..TemplateChange::default() };
    app.update_template(&w.t.caller, "new", off).await.unwrap();
    assert!(matches!(app.template(&w.t.caller, "new").await, Err(Error::Conflict(_))));
    app.delete_template(&w.t.caller, "new").await.unwrap();
    assert!(matches!(app.delete_template(&w.t.caller, "new").await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn layers_go_when_nobody_needs_them_and_never_before() {
    let w = Workbench::new().await;
    w.built("x", steps(vec![run("echo 1 > /v")])).await;
    let made = w.sandbox("x").await;
    let app = &w.t.app;
    let hours = |hours: u64| w.t.clock.advance(Duration::from_secs(3600 * hours));
    app.delete_template(&w.t.caller, "x").await.unwrap();
    hours(24 * 30);
    app.sweep_layers().await.unwrap();
    hours(1);
    app.sweep_layers().await.unwrap();
    let kept = w.t.fake.layer_ids();
    assert!(made.image.root.over.iter().all(|layer| kept.contains(layer)), "a sandbox stands on them");
    assert_eq!(w.output(&made, "cat /v").await, "1\n");
    app.destroy(&w.t.caller, made.id.as_str()).await.unwrap();
    hours(1);
    app.sweep_layers().await.unwrap();
    assert!(w.t.fake.layer_ids().is_empty(), "{:?}", w.t.fake.layer_ids());
}

#[tokio::test]
async fn a_database_that_knows_nothing_of_a_layer_removes_nothing() {
    let w = Workbench::new().await;
    w.built("x", steps(vec![run("echo 1 > /v")])).await;
    let before = w.t.fake.layer_ids().len();
    assert!(before > 1);
    let t = w.t.with_another_database().await;
    t.clock.advance(Duration::from_secs(3600 * 24 * 365));
    for _ in 0..3 {
        t.app.sweep_layers().await.unwrap();
    }
    assert_eq!(t.fake.layer_ids().len(), before);
}

#[tokio::test]
async fn an_organisation_keeps_no_more_than_it_may() {
    let w = Workbench::new().await;
    let app = &w.t.app;
    let mut quota = app.quota("default").await.unwrap();
    quota.storage_bytes = 1;
    app.set_quota(&w.t.caller, "default", quota).await.unwrap();
    let failed = w.built("big", steps(vec![run("echo 12345 > /v")])).await;
    assert!(failed.failure.unwrap().message.contains("may keep"));
    let limits = LimitsChange { memory: Some(1 << 50), ..LimitsChange::default() };
    let new = NewTemplate { name: "huge".into(), limits, ..NewTemplate::default() };
    assert!(matches!(app.create_template(&w.t.caller, new).await, Err(Error::Invalid { .. })));
}
