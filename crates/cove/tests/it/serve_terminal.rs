//! `cove serve` in a person's terminal: what its keys mean for the server, and what they do not mean for sandboxes.

use cove_testkit::guests::guests;
use cove_testkit::server::TestDirectory;
use cove_testkit::{Cove, Terminal};

const CTRL_C: &str = "\x03";

/// A server in a terminal, and its port.
fn serve(place: &TestDirectory) -> (Terminal, u32) {
    let mut terminal = Terminal::cove(&place.data(), ["serve", "--listen", "127.0.0.1:0"]);
    // The last line of its greeting.
    terminal.sees("curl ");
    let port = terminal.number_after("http://127.0.0.1:");
    (terminal, port)
}

fn ask(place: &TestDirectory, port: u32, arguments: &[&str]) -> Cove {
    let key = std::fs::read_to_string(place.data().join("api-key")).unwrap();
    let url = format!("http://127.0.0.1:{port}");
    place.cove(arguments.iter().copied()).env("COVE_URL", url).env("COVE_API_KEY", key.trim())
}

#[test]
fn ctrl_c_ends_the_server_and_its_sandboxes_go_on() {
    let place = TestDirectory::new();
    let (mut terminal, port) = serve(&place);
    ask(&place, port, &["create", "--name", "box"]).finish().expect_success();
    ask(&place, port, &["exec", "box", "--", "touch", "/tmp/mark"]).finish().expect_success();
    let before = guests(&place.data());
    assert_eq!(before.len(), 1, "{before:?}");

    terminal.types(CTRL_C);
    assert_eq!(terminal.ends(), 0, "{}", terminal.screen());
    assert_eq!(guests(&place.data()), before, "the sandbox goes on");

    // And the next server has it: the very same processes, not a new life.
    let (mut terminal, port) = serve(&place);
    ask(&place, port, &["exec", "box", "--", "test", "-e", "/tmp/mark"]).finish().expect_success();
    assert_eq!(guests(&place.data()), before);
    ask(&place, port, &["rm", "box"]).finish().expect_success();
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends(), 0, "{}", terminal.screen());
}
