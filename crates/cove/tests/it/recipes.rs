//! Templates by their name alone: recipes that the server builds, without a package index beyond this machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cove_testkit::TestServer;
use serde_json::{Value, json};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../control/recipes");

/// pip tries again for a while.
const PATIENCE: Duration = Duration::from_secs(120);

/// A package index of one package, in a folder of the sandbox itself.
const INDEX: &str = r#"mkdir -p /opt/index/tiny && cd /opt/index/tiny && python3 - <<'END'
import zipfile
info = "tiny-1.0.dist-info"
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny/__init__.py", "answer = 42\n")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", f"tiny/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
END
echo '<a href="tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>' > index.html"#;

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    let said = server.cove(arguments.iter().copied()).finish().expect_success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn inside(server: &TestServer, sandbox: &str, line: &str) -> String {
    server.cove(["exec", sandbox, "--", "sh", "-c", line]).finish().expect_success().stdout
}

fn write(server: &TestServer, path: &str, text: &str) {
    let path = server.data().join("recipes").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The shipped recipe on a template that has an index of its own.
fn with_index(server: &TestServer) {
    server.cove(["template", "build", "wheels", "--from", "base", "--run", INDEX]).finish().expect_success();
    let folder = Path::new(SHIPPED).join("code-interpreter");
    let text = fs::read_to_string(folder.join("recipe.toml")).unwrap();
    let changed = text.replace("template = \"base\"", "template = \"wheels\"");
    assert_ne!(text, changed, "the recipe says what it stands on");
    write(server, "code-interpreter/recipe.toml", &changed);
    write(server, "code-interpreter/install.sh", &fs::read_to_string(folder.join("install.sh")).unwrap());
}

#[test]
fn recipes_are_listed_printed_and_never_called_ready_before_they_are_built() {
    let server = TestServer::start();
    let listed = server.cove(["template", "recipes"]).finish().expect_success().stdout;
    for name in ["agents", "code-interpreter", "desktop", "node"] {
        let line = listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {listed}"));
        assert!(line.contains("not built"), "{line}");
    }
    let text = server.cove(["template", "recipes", "node"]).finish().expect_success().stdout;
    assert!(text.contains("[[steps]]") && text.contains("NODE_VERSION"), "{text}");
    let templates = server.cove(["template", "ls"]).finish().expect_success().stdout;
    for line in templates.lines().skip(1).filter(|line| !line.starts_with("base")) {
        assert!(line.contains("not built") && !line.contains("ready"), "{line}");
    }
    let states = told(&server, &["template", "ls", "--json"]);
    let state =
        |name: &str| states.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap()["state"].clone();
    assert_eq!((state("code-interpreter"), state("desktop")), (json!("not_built"), json!("not_built")));
    let shown = server.cove(["template", "show", "desktop"]).finish().expect_success();
    assert!(shown.stdout.contains("not built") && shown.stdout.contains("a window manager"), "{}", shown.stdout);
    assert!(shown.stderr.contains("hint: cove template build desktop"), "{}", shown.stderr);
    let refused = server.cove(["create", "--template", "node"]).finish().expect_code(1);
    assert!(refused.stderr.contains("cove template build node"), "{}", refused.stderr);
    // One that always works, and tells what it is until then.
    server.cove(["create", "--name", "box", "--template", "code-interpreter"]).finish().expect_success();
    let wrong = server.cove(["template", "build", "no-such-recipe"]).finish().expect_code(2);
    assert!(wrong.stderr.contains("there are recipes for agents, code-interpreter"), "{}", wrong.stderr);
    let wrong = server.cove(["template", "build", "x", "--from", "base", "--variant", "small"]).finish().expect_code(2);
    assert!(wrong.stderr.contains("--variant is for recipes"), "{}", wrong.stderr);
}

#[test]
fn code_interpreter_is_built_by_the_server_and_run_by_everybody() {
    let server = TestServer::start();
    with_index(&server);
    let build = || {
        let words = ["template", "build", "code-interpreter", "--small", "--build-arg", "PACKAGES=tiny"];
        server.cove(words).env("PIP_INDEX_URL", "file:///opt/index").within(PATIENCE)
    };
    let built = build().finish().expect_success();
    assert_eq!(built.stdout, "code-interpreter\n");
    assert!(built.stderr.contains("installing tiny") && !built.stderr.contains("CACHED"), "{}", built.stderr);
    let shown = told(&server, &["template", "show", "--json", "code-interpreter"]);
    assert_eq!((&shown["built"], &shown["built_in"], &shown["user"]), (&json!(true), &json!(true), &json!("user")));
    assert!(shown["description"].as_str().unwrap().contains("PACKAGES=tiny"), "{shown}");
    assert_eq!(shown["latest_builds"][0]["kind"], "steps");
    let line = server.cove(["template", "ls"]).finish().expect_success().stdout;
    assert!(line.lines().any(|line| line.starts_with("code-interpreter") && line.contains("ready")), "{line}");
    // The SDKs' name for it.
    server.cove(["create", "--name", "box", "--template", "code-interpreter-v1"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "id -un; python3 -c 'import tiny; print(tiny.answer)'"), "user\n42\n");
    assert_eq!(
        inside(&server, "box", "cat /usr/local/share/cove/packages; echo $MPLCONFIGDIR | cut -c1-5"),
        "tiny==1.0\n/usr/\n"
    );
    assert_eq!(inside(&server, "box", "printenv PIP_INDEX_URL PACKAGES || echo none"), "none\n");
    // Without the server's help.
    let run = ["run", "--template", "code-interpreter", "--", "python3", "-c", "import tiny; print(tiny.answer)"];
    let run = server.cove(run).env("COVE_DATA", server.data()).finish().expect_success();
    assert_eq!(run.stdout, "42\n");
    let again = build().finish().expect_success();
    assert!(again.stderr.contains("CACHED"), "{}", again.stderr);
    let log = server.cove(["template", "logs", "code-interpreter"]).finish().expect_success().stdout;
    assert!(log.contains("the template is ready"), "{log}");
    // What is wanted beside.
    let more =
        ["template", "build", "mine", "--recipe", "code-interpreter", "--variant", "small", "--package", "nowhere"];
    let more = server.cove(more).env("PIP_INDEX_URL", "file:///opt/index").within(PATIENCE).finish().expect_code(1);
    assert!(
        more.stderr.contains("EXTRA_PACKAGES=nowhere") && more.stderr.contains("the build failed"),
        "{}",
        more.stderr
    );
    // It goes, and the name works as before.
    server.cove(["rm", "box"]).finish().expect_success();
    server.cove(["template", "rm", "code-interpreter"]).finish().expect_success();
    assert_eq!(told(&server, &["template", "show", "--json", "code-interpreter"])["built"], false);
}

#[test]
fn a_password_in_the_address_of_an_index_is_in_no_log() {
    let server = TestServer::start();
    let words = ["template", "build", "code-interpreter", "--build-arg", "PACKAGES=tiny"];
    let index = "http://ada:hunter2-hunter2@127.0.0.1:9/simple";
    let failed = server.cove(words).env("PIP_INDEX_URL", index).env("PIP_DEFAULT_TIMEOUT", "1").within(PATIENCE);
    let failed = failed.finish().expect_code(1);
    assert!(failed.stderr.contains("installing tiny"), "{}", failed.stderr);
    assert!(failed.stderr.contains("error: the build failed at step 2"), "{}", failed.stderr);
    let log = server.cove(["template", "logs", "code-interpreter"]).finish().expect_success().stdout;
    assert!(log.contains("No matching distribution"), "{log}");
    assert!(!log.contains("hunter2") && !failed.stderr.contains("hunter2"), "{log}");
    assert!(!server.log().contains("hunter2"));
    let shown = told(&server, &["template", "show", "--json", "code-interpreter"]);
    assert_eq!(shown["built"], false, "a failure makes nothing ready: {shown}");
}

#[test]
fn a_recipe_of_ones_own_is_read_strictly() {
    let server = TestServer::start();
    write(&server, "tools/recipe.toml", "description = \"tools\"\n[[steps]]\nrun.script = \"make.sh\"\n");
    write(&server, "tools/make.sh", "# Makes a greeting\necho hello > /opt/greeting\n");
    write(&server, "broken.toml", "description = \"b\"\n\n[[steps]]\nrun.comand = \"true\"\n");
    let built = server.cove(["template", "build", "tools"]).finish().expect_success();
    assert!(built.stderr.contains("RUN # Makes a greeting …"), "{}", built.stderr);
    server.cove(["create", "--name", "box", "--template", "tools"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat /opt/greeting"), "hello\n");
    let refused = server.cove(["template", "build", "broken"]).finish().expect_code(1);
    assert!(refused.stderr.contains("broken.toml: line 4: unknown field `comand`"), "{}", refused.stderr);
    let listed = server.cove(["template", "recipes"]).finish().expect_success().stdout;
    assert!(listed.contains("line 4"), "{listed}");
}

/// Which programs a machine has is its own affair: where it has none of a desktop, the build says which.
#[test]
fn a_desktop_says_what_the_machine_lacks() {
    if ["Xvfb", "Xtigervnc", "Xvnc"].iter().any(|program| Path::new("/usr/bin").join(program).exists()) {
        return;
    }
    let server = TestServer::start();
    let failed = server.cove(["template", "build", "desktop"]).finish().expect_code(1);
    assert!(failed.stderr.contains("what a desktop needs is missing here: an X server (Xvfb)"), "{}", failed.stderr);
    assert!(failed.stderr.contains("apt-get install xvfb"), "{}", failed.stderr);
}
